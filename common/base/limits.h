/* Every limit of the system that is not a configuration flag.  README.md beside this file lists them; `make docs`
 * checks that both agree.  A limit is checked where input enters, and the error names the limit and the value that
 * came. */
#ifndef LEASEHOLD_BASE_LIMITS_H
#define LEASEHOLD_BASE_LIMITS_H

#define LIMIT_NAME_MAX           128          /* bytes of a worker, run, lease or batch name, NUL included */
#define LIMIT_URL_MAX            512          /* bytes of a worker's URL */
#define LIMIT_PATH_MAX           1024         /* bytes of a file path */
#define LIMIT_JSON_DEPTH         32           /* nesting of a JSON body */
#define LIMIT_JSON_NODES         (1u << 20)   /* values and members of a JSON document */
#define LIMIT_JSON_NODES_TOKENS  (16u << 20)  /* the same, for arrays of tokens and for large files */
#define LIMIT_JSON_MEMORY        (1u << 30)   /* bytes that a parsed document may take */
#define LIMIT_BODY_BYTES         (16u << 20)  /* a JSON request body, unless the route says otherwise */
#define LIMIT_BATCH_BODY_BYTES   (256u << 20) /* a submit-batch body or a batch result */
#define LIMIT_HTTP_RESERVE       64           /* connections beyond --connections-max, for the health routes only */
#define LIMIT_HTTP_URL_BYTES     2048
#define LIMIT_TOKENS             256   /* that a service accepts */
#define LIMIT_ALLOWED_HOSTS      256   /* entries of --allow-hosts */
#define LIMIT_WAIT_MS_MAX        60000 /* the longest long poll */
#define LIMIT_PROMPT_TOKENS      131072
#define LIMIT_NEW_TOKENS         131072
#define LIMIT_STOP_TOKENS        16
#define LIMIT_STOP_TEXTS         4 /* stop strings of a request */
#define LIMIT_STOP_TEXT_CHARS    1024
#define LIMIT_STOP_TEXT_BYTES    (4 * LIMIT_STOP_TEXT_CHARS)
#define LIMIT_TOP_LOGPROBS       20  /* alternatives shown for a token */
#define LIMIT_PROMPTS            256 /* of one request */
#define LIMIT_TOKEN_BIASES       1024 /* of one request */
#define LIMIT_CHAT_MESSAGES      4096 /* of one request */
#define LIMIT_CHAT_TOOLS         256  /* of one request */
#define LIMIT_GROUPS_PER_ROUND   4096
#define LIMIT_SAMPLES_PER_GROUP  1024
#define LIMIT_LAG                1000 /* versions between a token and the step that trains on it */
#define LIMIT_ROUNDS             1000000
#define LIMIT_WORKERS            16384 /* the most that --workers-max of a coordinator may be */
#define LIMIT_LEASES_PER_REQUEST 64    /* leases granted in one answer */
#define LIMIT_PASSES_PER_REQUEST 16    /* passes granted in one answer */
#define LIMIT_QUEUED_RUNS        64
#define LIMIT_SHOWN_EVALUATIONS  500  /* in a run's status, the newest; earlier ones by evaluations_before */
#define LIMIT_SHOWN_WORKERS      1000 /* in a run's totals, the newest; earlier ones by workers_before */
#define LIMIT_SHOWN_ANSWER_BYTES 1024 /* of each answer that POST /v1/check-run shows; more is cut, and said to be */
#define LIMIT_DATASET_LINES      50000000
#define LIMIT_DATASET_LINE_BYTES (4u << 20)
#define LIMIT_SLOTS              4096      /* decode slots of one generation-server */
#define LIMIT_QUEUED_REQUESTS    4096      /* samples of plain generate requests, waiting or decoded */
#define LIMIT_OPEN_POSITIONS     (1 << 26) /* of those samples, prompt and new tokens: about 1 GiB */
#define LIMIT_HTTP_BODIES_BYTES \
  (1u << 30) /* a service's request bodies and their parsed trees, or two of its route's largest */
#define LIMIT_THREADS            256
#define LIMIT_SEQUENCE_TOKENS    262144
#define LIMIT_SAFETENSORS_HEADER (100u << 20)
#define LIMIT_TENSORS            65536
#define LIMIT_SHARDS             1024 /* files of one model */
#define LIMIT_VOCABULARY         1048576
#define LIMIT_EXPERTS            1024 /* of a layer */
#define LIMIT_VERIFIER_STEPS     100000 /* work of one verification: counted, never timed */

#endif
