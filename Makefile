# Leasehold.  `make help` lists the targets.
# Objects mirror the tree under build/obj, one static library per module; a program links its layer and those below it.

CC      ?= gcc
BUILD   ?= build
WARN    := -Wall -Wextra -Wshadow -Wconversion -Werror
CFLAGS  ?= -O2 -g
BASE_CFLAGS := -std=c17 -D_GNU_SOURCE -ffp-contract=off -fno-fast-math -march=x86-64-v2 -pthread -I. $(WARN) -MMD -MP
SAN     ?=
ALL_CFLAGS = $(CFLAGS) $(BASE_CFLAGS) $(SAN)
LDLIBS  := -lm -pthread

LIB_base        := -lcrypto
LIB_json        := -ljansson
LIB_http        := -lmicrohttpd -lcurl
LIB_model       := -lpcre2-8 -lutf8proc
LIB_coordinator := -lsqlite3

# --- modules: name, folder(s), modules below --------------------------------------------------------------------------
SRC_base        := $(wildcard common/base/*.c)
SRC_json        := $(wildcard common/json/*.c)
SRC_safetensors := $(wildcard common/safetensors/*.c)
SRC_wire        := $(wildcard common/wire/*.c)
SRC_http        := $(wildcard common/http/*.c)
SRC_client      := $(wildcard common/client/*.c)
SRC_model       := $(wildcard common/model/*.c common/model/cpu/*.c)
SRC_isa         := $(wildcard common/model/cpu/isa/*.c)
SRC_coordinator := $(filter-out services/coordinator/main.c,$(wildcard services/coordinator/*.c))
SRC_generation-server := $(filter-out services/generation-server/main.c,$(wildcard services/generation-server/*.c))
SRC_trainer-server := $(filter-out services/trainer-server/main.c,$(wildcard services/trainer-server/*.c))

# Modules that a module links, nearest first.
DEP_base        :=
DEP_json        := base
DEP_safetensors := json base
DEP_wire        := json base
DEP_http        := wire json base
DEP_client      := http wire json base
DEP_model       := safetensors json base
DEP_coordinator := client http wire model safetensors json base
DEP_generation-server := client http wire model safetensors json base
DEP_trainer-server := client http wire model safetensors json base

MODULES  := base json safetensors wire http client model coordinator generation-server trainer-server
SERVICES := coordinator generation-server trainer-server
ISAS     := v2 v3 v4
V4_FLAGS := -mprefer-vector-width=512

OBJ = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
OBJ_isa := $(foreach isa,$(ISAS),$(patsubst common/model/cpu/isa/%.c,$(BUILD)/obj/common/model/cpu/isa/%.$(isa).o,$(SRC_isa)))

.PHONY: all
all: $(foreach s,$(SERVICES),$(BUILD)/bin/$(s))

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

define ISA_RULE
$(BUILD)/obj/common/model/cpu/isa/%.$(1).o: common/model/cpu/isa/%.c
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) -O3 -march=x86-64-$(1) $$(if $$(filter v4,$(1)),$(V4_FLAGS)) -DCPU_ISA=$(1) -c $$< -o $$@
endef
$(foreach isa,$(ISAS),$(eval $(call ISA_RULE,$(isa))))

define LIB_RULE
$(BUILD)/lib/lib$(1).a: $(call OBJ,$(SRC_$(1))) $(if $(filter model,$(1)),$(OBJ_isa))
	@mkdir -p $$(@D)
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach m,$(MODULES),$(eval $(call LIB_RULE,$(m))))

# libraries and system libraries of module $(1), itself included
LINK_LIBS = $(foreach m,$(1) $(DEP_$(1)),$(BUILD)/lib/lib$(m).a)
LINK_SYS  = $(foreach m,$(1) $(DEP_$(1)),$(LIB_$(m)))

define SERVICE_RULE
$(BUILD)/bin/$(1): $(call OBJ,services/$(1)/main.c) $(call LINK_LIBS,$(1))
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) $$^ -o $$@ $(call LINK_SYS,$(1)) $(LDLIBS)
endef
$(foreach s,$(SERVICES),$(eval $(call SERVICE_RULE,$(s))))

# --- unit tests: tests/unit/<module>/test_*.c links <module> and what is below it, and cmocka ---------------------------
define UNIT_RULE
UNIT_$(1) := $$(patsubst tests/unit/$(1)/%.c,$(BUILD)/tests/$(1)/%,$$(wildcard tests/unit/$(1)/test_*.c))
$(BUILD)/tests/$(1)/%: $(BUILD)/obj/tests/unit/$(1)/%.o $(call LINK_LIBS,$(1))
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) $$^ -o $$@ -lcmocka $(call LINK_SYS,$(1)) $(LDLIBS)
endef
$(foreach m,$(MODULES),$(eval $(call UNIT_RULE,$(m))))
UNIT_TESTS := $(foreach m,$(MODULES),$(UNIT_$(m)))

.PHONY: unit $(addprefix unit-,$(MODULES))
unit: $(UNIT_TESTS)
	@tests/tools/run-unit $(UNIT_TESTS)
$(addprefix unit-,$(MODULES)): unit-%:
	@$(MAKE) --no-print-directory $(UNIT_$*)
	@tests/tools/run-unit $(UNIT_$*)

.PRECIOUS: $(BUILD)/obj/%.o $(BUILD)/obj/common/model/cpu/isa/%.o
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
