# Follows a run: the lines of GET /v1/runs/{id}/events in (jq -nR), what is to be shown out.  "state STATE ERROR" for each state, then a line for every $every-th of $rounds rounds:
# $kind is "warmup" or "grpo"; nothing for any other.

def bar: (. * 30 + 0.5 | floor) as $n | "#" * $n + "." * (30 - $n);
def right($width): tostring | " " * ([$width - length, 0] | max) + .;
def fixed($digits): pow(10; $digits) as $p | . * $p | round | tostring | if length <= $digits then "0" * ($digits + 1 - length) + . else . end | .[:-$digits] + "." + .[-$digits:];

foreach inputs as $line ({tokens: 0, reward: 0, validation: "-"};
  .shown = null
  | if ($line | startswith("event: ")) then .event = $line[7:]
    elif ($line | startswith("data: ") | not) then .
    else ($line[6:] | fromjson) as $data
      | if .event == "state" then .begun = now | .shown = "state \($data.state) \($data.error // "")"
        elif .event == "eval" then .validation = ($data.accuracy | fixed(3))
        elif .event == "round" then
          .tokens += $data.sampled_tokens
          | .reward = ($data.reward_mean // .reward)
          | ($data.round + 1) as $done
          | ((now - .begun) * ($rounds - $done) / $done | round) as $left
          | if $done % $every > 0 then .
            elif $kind == "warmup" then .shown = "  step \($done | right(4))/\($rounds)   loss \($data.loss // 0 | fixed(4))   \($left) s left"
            elif $kind == "grpo" then
              .shown = "  round \($done | right(3))/\($rounds)   reward \(.reward | fixed(3)) \(.reward | bar)   validation \(.validation)   \(.tokens / (now - .begun) | round) tokens/s   \($left) s left"
            else . end
        else . end
    end;
  .shown // empty)
