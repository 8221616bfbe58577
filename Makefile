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
LIB_http        := -lmicrohttpd -lgnutls -lcurl
LIB_template    := -lutf8proc
LIB_model       := -lpcre2-8 -lutf8proc
LIB_coordinator := -lsqlite3 -lz -lzstd
MPI_CFLAGS      = $(patsubst -I%,-isystem %,$(shell pkg-config --cflags ompi-c))
MPI_LIBS        = $(shell pkg-config --libs ompi-c)
HAS_MPI         = $(shell pkg-config --exists ompi-c && echo yes)

# --- modules: name, folder(s), modules below --------------------------------------------------------------------------
SRC_base        := $(wildcard common/base/*.c)
SRC_threads     := $(wildcard common/threads/*.c)
SRC_json        := $(wildcard common/json/*.c)
SRC_safetensors := $(wildcard common/safetensors/*.c)
SRC_template    := $(wildcard common/template/*.c common/template/*/*.c)
SRC_wire        := $(wildcard common/wire/*.c)
SRC_http        := $(wildcard common/http/*.c common/http/trust/*.c)
SRC_client      := $(wildcard common/client/*.c)
SRC_comm        := common/comm/comm_self.c common/comm/comm_staged.c common/comm/fabric_token.c
SRC_model       := $(wildcard $(addprefix common/model/,*.c tokenizer/*.c chat/*.c network/*.c learning/*.c cpu/*.c))
SRC_kernels     := $(wildcard common/model/cpu/isa/*.c common/model/cpu/isa/*/*.c)
SRC_isa         := $(filter-out %_amx.c,$(SRC_kernels))
SRC_amx         := $(filter %_amx.c,$(SRC_kernels)) common/model/cpu/isa/kernel_table.c
SRC_coordinator := $(filter-out %/main.c,$(wildcard services/coordinator/*.c services/coordinator/*/*.c))
SRC_generation-server := $(filter-out %/main.c,$(wildcard services/generation-server/*.c services/generation-server/*/*.c))
SRC_trainer-server := $(filter-out %/main.c,$(wildcard services/trainer-server/*.c services/trainer-server/*/*.c))
SRC_cli         := $(filter-out %/main.c,$(wildcard services/cli/*/*.c))
SRC_rollout-agent := $(filter-out %/main.c,$(wildcard services/rollout-agent/*.c services/rollout-agent/*/*.c))

# Modules that a module links, nearest first.
DEP_base        :=
DEP_threads     := base
DEP_json        := base
DEP_safetensors := json base
DEP_template    := json base
DEP_wire        := safetensors json base
DEP_http        := wire safetensors json base
DEP_client      := http wire safetensors json base
DEP_comm        := base
DEP_model       := threads template safetensors json base
DEP_coordinator := client http wire model threads template safetensors json base
DEP_generation-server := client http wire model threads template comm safetensors json base
DEP_trainer-server := client http wire model threads template comm safetensors json base
DEP_rollout-agent := client http wire safetensors json base
DEP_cli         := client http wire safetensors json base

MODULES  := base threads json safetensors wire http client comm template model coordinator generation-server trainer-server rollout-agent cli
SERVICES := coordinator generation-server trainer-server rollout-agent
ISAS     := v2 v3 v4 v4_bf16 amx
ISA_v2   := -march=x86-64-v2
ISA_v3   := -march=x86-64-v3
ISA_v4   := -march=x86-64-v4 -mprefer-vector-width=512
ISA_v4_bf16 := $(ISA_v4) -mavx512bf16
ISA_amx  := $(ISA_v4_bf16) -mamx-tile -mamx-bf16
ISA_OPT  ?= -O3

# --- CUDA: compiled in where CUDA=1 (`make cuda`), by nvcc; and by g++ over an emulated device for the tests -------------------
CXX       ?= g++
NVCC      ?= $(or $(shell command -v nvcc 2>/dev/null),/usr/local/cuda/bin/nvcc)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_ARCHS ?= 80 90
SRC_cuda  := $(wildcard common/model/cuda/*.cu)
CU_FLAGS  := -std=c++17 -I. -MMD -MP
# No contraction, subnormals to zero, division and square root to nearest: what NUMERICS.md's expressions need.
NVCC_FLAGS := $(CU_FLAGS) -O3 -lineinfo -Xfatbin -compress-all -fmad=false -ftz=true -prec-div=true -prec-sqrt=true -Werror all-warnings -Xcompiler -Wall,-Wextra,-ffp-contract=off \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
# NCCL_FLAGS and NCCL_LIBS say where its header and library are when neither the compiler nor CUDA has them.
NCCL_LIBS ?= -lnccl
NCCL_ALL_FLAGS = $(NCCL_FLAGS) -isystem $(CUDA_HOME)/include
NCCL_ALL_LIBS  = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 $(NCCL_LIBS)
HAS_NCCL  = $(shell echo 'int main(void) { return 0; }' | $(CC) $(NCCL_ALL_FLAGS) -include nccl.h -x c - -o /dev/null $(NCCL_ALL_LIBS) >/dev/null 2>&1 && echo yes)
ifdef CUDA
OBJ_cuda  := $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(SRC_cuda))
LIB_model += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -ldl -lrt -lstdc++
BASE_CFLAGS += -DLEASEHOLD_CUDA
ifeq ($(HAS_NCCL),yes)
OBJ_link  := $(BUILD)/obj/common/comm/comm_nccl.o
LIB_link  := $(NCCL_ALL_LIBS)
LINK_FLAG := -DLEASEHOLD_NCCL
endif
endif

OBJ = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
# PLAIN=folder, of the builds with faults and with CUDA: `all` is there without them, and of the modules only those files are compiled again that ask, or
# whose headers ask, for either.
ifdef PLAIN
ASKING := $(shell grep -rlE --include='*.[ch]' 'LEASEHOLD_(FAULTS|CUDA|NCCL|FABRIC_NCCL)' common services)
AGAIN  := $(patsubst $(PLAIN)/obj/%.d,%.c,$(shell grep -rlF --include='*.d' $(ASKING:%=-e %) $(PLAIN)/obj/common $(PLAIN)/obj/services))
endif
OBJ_module = $(foreach c,$(1),$(if $(filter-out $(AGAIN),$(c)),$(or $(PLAIN),$(BUILD)),$(BUILD))/obj/$(c:.c=.o))
OBJ_isa := $(foreach isa,$(filter-out amx,$(ISAS)),$(patsubst %.c,$(or $(PLAIN),$(BUILD))/obj/%.$(isa).o,$(SRC_isa))) $(patsubst %.c,$(or $(PLAIN),$(BUILD))/obj/%.amx.o,$(SRC_amx))

PYTHON  ?= /usr/bin/python3
# Most of an end-to-end test is waiting: for leases that expire, workers that fall silent, syncs of files.
E2E_JOBS ?= 4
PACKAGES := gcc g++ make pkg-config libmicrohttpd-dev libgnutls28-dev libcurl4-openssl-dev libjansson-dev libsqlite3-dev libssl-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libcmocka-dev \
            curl jq openssl python3 python3-pytest python3-pytest-xdist python3-yaml python3-jsonschema python3-jinja2 python3-venv
MPI_PACKAGES := libopenmpi-dev openmpi-bin
PAGE_PACKAGES := libjs-chart.js
LINT_PACKAGES := shellcheck
MODEL_PACKAGES := spin

.PHONY: all
all: $(foreach s,$(SERVICES) leasehold,$(BUILD)/bin/$(s)) ## build the four services and the command line, in build/bin

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

$(BUILD)/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -Xptxas -v -c $< -o $@ 2>$@.resources || { cat $@.resources; exit 1; } # tests/cuda/resources reads them

# The page's files are put into the program.
$(BUILD)/obj/services/coordinator/page/page_files.o: $(wildcard services/coordinator/page/files/*)

# With -g1 for -g: to keep account of their locals for a debugger would double how long they compile.
define ISA_RULE
$(BUILD)/obj/common/model/cpu/isa/%.$(1).o: common/model/cpu/isa/%.c
	@mkdir -p $$(@D)
	$(CC) $(patsubst -g,-g1,$(ALL_CFLAGS)) $(ISA_OPT) $(ISA_$(1)) -DCPU_ISA=$(1) -c $$< -o $$@
endef
$(foreach isa,$(ISAS),$(eval $(call ISA_RULE,$(isa))))

define LIB_RULE
$(BUILD)/lib/lib$(1).a: $(call OBJ_module,$(SRC_$(1))) $(if $(filter model,$(1)),$(OBJ_isa) $(OBJ_cuda))
	@mkdir -p $$(@D)
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach m,$(MODULES),$(eval $(call LIB_RULE,$(m))))

# Libraries and system libraries of module $(1), itself included.
LINK_LIBS = $(foreach m,$(1) $(DEP_$(1)),$(BUILD)/lib/lib$(m).a)
LINK_SYS  = $(foreach m,$(1) $(DEP_$(1)),$(LIB_$(m)))

# --- NCCL between the pool's GPUs (make cuda NCCL=1): what the services link for it ---------------------------------------
NCCL_OBJ := $(call OBJ,common/comm/comm_nccl.c common/comm/fabric_nccl.c tests/ranks/check_nccl.c)
$(NCCL_OBJ): ALL_CFLAGS += $(NCCL_ALL_FLAGS)
ifdef NCCL
BASE_CFLAGS += -DLEASEHOLD_FABRIC_NCCL
OBJ_fabric  := $(call OBJ,common/comm/fabric_nccl.c)
LIB_fabric  := $(NCCL_ALL_LIBS)
endif
OBJ_fabric_generation-server := $(OBJ_fabric)
OBJ_fabric_trainer-server    := $(OBJ_fabric)
LIB_fabric_generation-server := $(LIB_fabric)
LIB_fabric_trainer-server    := $(LIB_fabric)

define SERVICE_RULE
$(BUILD)/bin/$(1): $(call OBJ,services/$(1)/main.c) $(OBJ_fabric_$(1)) $(call LINK_LIBS,$(1))
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) $$^ -o $$@ $(call LINK_SYS,$(1)) $(LIB_fabric_$(1)) $(LDLIBS)
endef
$(foreach s,$(SERVICES),$(eval $(call SERVICE_RULE,$(s))))

$(BUILD)/bin/leasehold: $(call OBJ,services/cli/main.c) $(call LINK_LIBS,cli)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,cli) $(LDLIBS)

# --- what mpirun starts, the trainer over several processes and servers beside them: the same objects, other mains, and the users of MPI --------
OBJ_mpi := $(call OBJ,common/comm/comm_mpi.c common/comm/fabric_mpi.c common/comm/mpi_world.c)
$(OBJ_mpi): ALL_CFLAGS += $(MPI_CFLAGS)
OBJ_link_trainer-server := $(OBJ_link)
LIB_link_trainer-server := $(LIB_link)
define MPI_RULE
$(BUILD)/obj/services/$(1)/main.mpi.o: services/$(1)/main.c
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) -DLEASEHOLD_MPI $(LINK_FLAG) -c $$< -o $$@
$(BUILD)/bin/$(1)-mpi: $(BUILD)/obj/services/$(1)/main.mpi.o $(OBJ_mpi) $(OBJ_link_$(1)) $(OBJ_fabric_$(1)) $(call LINK_LIBS,$(1))
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) $$^ -o $$@ $(call LINK_SYS,$(1)) $(or $(LIB_link_$(1)),$(LIB_fabric_$(1))) $$(MPI_LIBS) $(LDLIBS)
endef
$(foreach s,trainer-server generation-server,$(eval $(call MPI_RULE,$(s))))

$(BUILD)/tests/ranks/check_comm: $(call OBJ,tests/ranks/check_comm.c) $(OBJ_mpi) $(call LINK_LIBS,model) $(BUILD)/lib/libcomm.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,model) $(MPI_LIBS) $(LDLIBS)

$(BUILD)/tests/ranks/check_nccl: $(NCCL_OBJ) $(call OBJ,common/comm/comm_mpi.c common/comm/mpi_world.c) $(BUILD)/lib/libcomm.a $(call LINK_LIBS,base)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,base) $(MPI_LIBS) $(NCCL_ALL_LIBS) -lcudart $(LDLIBS)

# --- unit tests: tests/unit/<module>/test_*.c links <module> and what is below it, and cmocka ---------------------------
# The folder's other .c files are what its tests share, in a library of theirs: a test takes from it what it uses.
SIM_WORLD    := $(wildcard tests/sim/world*.c) tests/sim/clairvoyant.c
OBJ_tiles    := $(patsubst %.c,$(BUILD)/obj/%.tiles.o,$(filter %_amx.c,$(SRC_kernels)))
TESTS_SHARED  = $(call OBJ,$(filter-out tests/unit/$(1)/test_%,$(wildcard tests/unit/$(1)/*.c)) $(if $(filter coordinator,$(1)),$(SIM_WORLD))) $(if $(filter model,$(1)),$(OBJ_tiles))
# The AMX kernels over emulated tiles.
$(BUILD)/obj/%.tiles.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -include tests/unit/model/tiles_emulated.h -c $< -o $@
define UNIT_RULE
UNIT_$(1) := $$(patsubst tests/unit/$(1)/%.c,$(BUILD)/tests/$(1)/%,$$(wildcard tests/unit/$(1)/test_*.c))
$(BUILD)/lib/libtests-$(1).a: $(call TESTS_SHARED,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	ar rcs $$@ $$^
$(BUILD)/tests/$(1)/%: $(BUILD)/obj/tests/unit/$(1)/%.o $(if $(strip $(call TESTS_SHARED,$(1))),$(BUILD)/lib/libtests-$(1).a) $(call LINK_LIBS,$(1))
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) $$^ -o $$@ -lcmocka $(call LINK_SYS,$(1)) $(LDLIBS)
endef
$(foreach m,$(MODULES),$(eval $(call UNIT_RULE,$(m))))
# Judged by a wall clock: make speed.
SPEED_TEST := $(BUILD)/tests/model/test_ops_speed
UNIT_model := $(filter-out $(SPEED_TEST),$(UNIT_model))
UNIT_TESTS := $(foreach m,$(MODULES),$(UNIT_$(m)))

# --- the CUDA table's tests: tests/cuda/test_*.c over an emulated device here, over a real one with CUDA=1 --------------------
EMULATED_FLAGS := $(CFLAGS) $(CU_FLAGS) -march=x86-64-v2 -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas -Werror -Itests/cuda/emulated
OBJ_emulated := $(patsubst %,$(BUILD)/emulated/%.o,$(filter-out %/gemm_vendor.cu,$(SRC_cuda)) $(wildcard tests/cuda/emulated/*.cc))
CUDA_TESTS := $(patsubst tests/cuda/%.c,$(BUILD)/tests/cuda/%,$(wildcard tests/cuda/test_*.c))
$(BUILD)/emulated/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(CXX) -x c++ $(EMULATED_FLAGS) -c $< -o $@
$(BUILD)/emulated/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) -c $< -o $@
$(BUILD)/emulated/%.c.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DLEASEHOLD_CUDA -DLEASEHOLD_CUDA_EMULATED -c $< -o $@
ifdef CUDA
$(BUILD)/tests/cuda/%: $(BUILD)/obj/tests/cuda/%.o $(call LINK_LIBS,generation-server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ -lcmocka $(call LINK_SYS,generation-server) $(LDLIBS)
else
$(BUILD)/tests/cuda/%: $(BUILD)/emulated/tests/cuda/%.c.o $(OBJ_emulated) $(call LINK_LIBS,generation-server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ -lcmocka $(call LINK_SYS,generation-server) $(LDLIBS) -lstdc++
endif

# The services that compute, over the emulated device: for tests/e2e/test_device.py and test_device_ranks.py.
define EMULATED_RULE
$(BUILD)/emulated/bin/$(1): $(call OBJ,services/$(1)/main.c) $(BUILD)/emulated/common/model/device.c.o $(OBJ_emulated) $(call LINK_LIBS,$(1))
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) $$^ -o $$@ $(call LINK_SYS,$(1)) $(LDLIBS) -lstdc++
endef
$(foreach s,generation-server trainer-server,$(eval $(call EMULATED_RULE,$(s))))
$(BUILD)/emulated/services/trainer-server/main.mpi.o: services/trainer-server/main.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DLEASEHOLD_MPI -DLEASEHOLD_NCCL -c $< -o $@
EMULATED_RANK := $(addprefix $(BUILD)/,emulated/services/trainer-server/main.mpi.o emulated/tests/ranks/emulated_nccl.cc.o) $(OBJ_mpi)
$(BUILD)/emulated/bin/trainer-server-mpi: $(EMULATED_RANK) $(BUILD)/emulated/common/model/device.c.o $(OBJ_emulated) $(call LINK_LIBS,trainer-server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,trainer-server) $(MPI_LIBS) $(LDLIBS) -lstdc++
EMULATED_SERVICES := $(addprefix $(BUILD)/emulated/bin/,generation-server trainer-server $(if $(HAS_MPI),trainer-server-mpi))

.PHONY: unit-cuda
unit-cuda: $(CUDA_TESTS) $(EMULATED_SERVICES) ## test the CUDA table over an emulated device: no GPU, no nvcc
	@tests/tools/run-unit $(CUDA_TESTS)

.PHONY: unit $(addprefix unit-,$(MODULES))
unit: $(UNIT_TESTS) ## run the unit tests of all modules (unit-base, unit-model, ... for one)
	@tests/tools/run-unit $(UNIT_TESTS)
$(addprefix unit-,$(MODULES)): unit-%:
	@$(MAKE) --no-print-directory $(UNIT_$*)
	@tests/tools/run-unit $(UNIT_$*)

.PHONY: speed
speed: $(SPEED_TEST) ## time the kernels on one core: no level may fall far below the others (on an otherwise idle machine)
	@tests/tools/run-unit $<

# Our side of the comparison with the tokenizers package.
$(BUILD)/tests/tokenizer_answers: $(call OBJ,tests/golden/tokenizer/answers.c) $(call LINK_LIBS,model)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,model) $(LDLIBS)

manifests: all mpi ## hold the Kubernetes manifests to the services, and start what they start (SCHEMAS=1: and to Kubernetes' schemas, by pip, into build/)
	@$(PYTHON) tests/kubernetes/check $(if $(SCHEMAS),--schemas)
	@$(PYTHON) tests/kubernetes/start

tokenizers: $(BUILD)/tests/tokenizer_answers ## compare ids with the tokenizers package on drawn strings, family by family (by pip, into build/; STRINGS=n, SEED=n)
	@tests/golden/tokenizer/compare --strings $(or $(STRINGS),20000) --seed $(or $(SEED),1)

# What renders templates for comparison with jinja2: tests/e2e/test_templates.py, tests/template/compare.py.
$(BUILD)/tests/render_template: $(call OBJ,tests/template/render.c) $(call LINK_LIBS,template)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,template) $(LDLIBS)

# Statistics of evaluations, for comparison with tests/evaluation/definition.py: tests/e2e/test_evaluation.py.
$(BUILD)/tests/estimates: $(call OBJ,tests/evaluation/estimates.c) $(call LINK_LIBS,coordinator)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,coordinator) $(LDLIBS)

# --- simulation: the coordinator over virtual time ---------------------------------------------------------------------
SIM_PROGRAMS := chaos rounds large
$(SIM_PROGRAMS:%=$(BUILD)/tests/sim/%): $(BUILD)/tests/sim/%: $(BUILD)/obj/tests/sim/sim_%.o $(call OBJ,$(SIM_WORLD)) $(call LINK_LIBS,coordinator)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,coordinator) $(LDLIBS)

# What a measured workload takes: for make bench-pipeline.
$(BUILD)/tests/sim/predict: $(call OBJ,tests/sim/predict.c $(SIM_WORLD)) $(call LINK_LIBS,coordinator)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,coordinator) $(LDLIBS)

.PHONY: sim $(SIM_PROGRAMS:%=sim-%)
$(SIM_PROGRAMS:%=sim-%): sim-%: $(BUILD)/tests/sim/%
	@$<
sim: ## simulate runs in virtual time: what the coordinator promises holds under accidents, what each policy is worth, 10,000 servers
	@$(MAKE) --no-print-directory -j2 -Otarget sim-large sim-chaos sim-rounds

# --- benchmarks: the instrument, and the peer where its library is installed -------------------------------------------
BENCH_PARTS := $(addprefix tests/bench/,instrument.c bench.c bench_peak.c bench_kernels.c bench_attention.c bench_model.c bench_train.c)
$(BUILD)/bench/instrument: $(call OBJ,$(BENCH_PARTS)) $(call LINK_LIBS,model)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,model) $(LDLIBS)

$(BUILD)/bench/peer_onednn: $(call OBJ,tests/bench/peer_onednn.c tests/bench/bench.c) $(call LINK_LIBS,base)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ -ldnnl $(call LINK_SYS,base) $(LDLIBS)

COORDINATOR_LOAD := $(wildcard tests/bench/coordinator/*.c) tests/unit/coordinator/fake_trainer.c
$(BUILD)/bench/coordinator_load: $(call OBJ,$(COORDINATOR_LOAD)) $(call LINK_LIBS,coordinator)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,coordinator) $(LDLIBS)

$(BUILD)/bench/publish_load: $(call OBJ,tests/bench/publish_load.c) $(call LINK_LIBS,trainer-server)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,trainer-server) $(LDLIBS)
# What the coordinator's cost cannot fall below: its HTTP by a handler that does nothing, and its statements by SQLite alone.
$(BUILD)/bench/floor_http: $(call OBJ,tests/bench/floor/http.c)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ -lmicrohttpd $(LDLIBS)
RECORDED := store_open store_script store_exec store_query store_int rows_next rows_end
$(BUILD)/obj/tests/bench/floor/coordinator_main.o: services/coordinator/main.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -Dmain=coordinator_main -c $< -o $@
$(BUILD)/bench/floor_sqlite: $(call OBJ,tests/bench/floor/sqlite.c) $(BUILD)/obj/tests/bench/floor/coordinator_main.o $(call LINK_LIBS,coordinator)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(RECORDED:%=-Wl,--wrap=%) $^ -o $@ $(call LINK_SYS,coordinator) $(LDLIBS)
BENCH_COORDINATOR := $(addprefix $(BUILD)/,bin/coordinator bench/coordinator_load bench/floor_http bench/floor_sqlite)

# --- verifiers: the pairs' judge -------------------------------------------------------------------------------------------
$(BUILD)/tests/verifiers/%: $(BUILD)/obj/tests/verifiers/%.o $(call LINK_LIBS,coordinator)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,coordinator) $(LDLIBS)

# --- faults at every call: preloaded into the services by tests/fault/run.py ---------------------------------------------------
SHIM := $(BUILD)/tests/fault/shim.so
$(SHIM): $(wildcard tests/fault/*.c) tests/fault/shim.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -std=c17 -D_GNU_SOURCE -I. $(WARN) -fPIC -shared -pthread $(filter %.c,$^) -o $@

# --- fuzzing: each tests/fuzz/fuzz_NAME.c with libFuzzer (make fuzz), and with a main that reads committed inputs ------------
FUZZ_TARGETS := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_MODULE_json := json
FUZZ_MODULE_wire := wire
FUZZ_MODULE_safetensors := safetensors
FUZZ_MODULE_http_head := http
FUZZ_MODULE_template := template
FUZZ_MODULE_model_config := model
FUZZ_MODULE_tokenizer_file := model
FUZZ_MODULE_tokenizer_text := model
define FUZZ_RULE
$(BUILD)/tests/fuzz/corpus_$(1): $(call OBJ,tests/fuzz/fuzz_$(1).c tests/fuzz/corpus_main.c) $(call LINK_LIBS,$(or $(FUZZ_MODULE_$(1)),coordinator))
	@mkdir -p $$(@D)
	$$(CC) $$(ALL_CFLAGS) $$^ -o $$@ $(call LINK_SYS,$(or $(FUZZ_MODULE_$(1)),coordinator)) $$(LDLIBS)
$(BUILD)/tests/fuzz/fuzz_$(1): $(call OBJ,tests/fuzz/fuzz_$(1).c) $(call LINK_LIBS,$(or $(FUZZ_MODULE_$(1)),coordinator))
	@mkdir -p $$(@D)
	$$(CC) $$(ALL_CFLAGS) -fsanitize=fuzzer $$^ -o $$@ $(call LINK_SYS,$(or $(FUZZ_MODULE_$(1)),coordinator)) $$(LDLIBS)
endef
$(foreach t,$(FUZZ_TARGETS),$(eval $(call FUZZ_RULE,$(t))))
# A whole coordinator under random sequences of messages.
$(BUILD)/tests/fuzz/protocol: $(BUILD)/obj/tests/fuzz/protocol.o $(BUILD)/lib/libtests-coordinator.a $(call LINK_LIBS,coordinator)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ -lcmocka $(call LINK_SYS,coordinator) $(LDLIBS)
# By clang; no target computes, so that the kernels are left out, and of the coordinator what reads no strangers' bytes.
comma := ,
FUZZ_CHOSEN = $(or $(subst $(comma), ,$(TARGETS)),$(FUZZ_TARGETS))
FUZZ_SOURCES = SRC_isa= SRC_amx= SRC_model="$(filter-out common/model/cpu/%,$(SRC_model))" \
               SRC_coordinator="$(filter $(addprefix services/coordinator/,decide/% evaluation/% verifiers/% run/%),$(SRC_coordinator))"
FUZZ_BUILD = $(MAKE) --no-print-directory -j2 -s BUILD=$(BUILD)/fuzz CC=clang WARN= $(FUZZ_SOURCES) CFLAGS="-O1 -g1 -fno-omit-frame-pointer" \
             SAN="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"

HAS_ONEDNN = $(shell $(CC) -E -include dnnl.h -x c /dev/null >/dev/null 2>&1 && echo yes)

# --- AMX without a CPU that has it: tests/bochs/run boots Linux in an emulator -----------------------------------------------
$(BUILD)/tests/bochs/check_tiles: $(call OBJ,tests/bochs/check_tiles.c tests/unit/model/tiles_emulated.c) $(call LINK_LIBS,model)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $^ -o $@ $(call LINK_SYS,model) $(LDLIBS)

# --- what people call ---------------------------------------------------------------------------------------------------
.PHONY: help manifests cuda deps demo demo-dapo demo-reward check test test-all test-page contract tokenizers families losses vllm sglang verifiers fuzz fuzz-corpus fuzz-protocol model endurance test-compose test-bochs bench bench-coordinator bench-inflight bench-pipeline bench-publish bench-trl whole-size e2e long load bench-smoke faults fault mpi nccl layers circles length dead sleeps docs mutants mutants-sample lint api-check demo-data asan ubsan tsan install clean
help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

deps: ## install what is missing (Debian packages, by name)
	@deploy/demo/prepare packages $(BUILD)/packages.log $(PACKAGES) $(PAGE_PACKAGES) $(MPI_PACKAGES) $(LINT_PACKAGES) $(MODEL_PACKAGES)

demo demo-dapo demo-reward: MPI_PACKAGES = # not needed for one trainer
demo demo-dapo demo-reward: LINT_PACKAGES =
demo demo-dapo demo-reward: MODEL_PACKAGES =
demo: deps ## install, build, train a small base and run GRPO until it has learned (SEED=n, MODE=sync|inflight, CONTROL=shuffled|lr0, CPUS=0,1, KEEP=1: the services stay)
	@MAKE='$(MAKE)' deploy/demo/prepare build $(BUILD)/build.log all
	@deploy/demo/demo.sh

demo-reward: deps ## the demo's task with rewards from a server of one's own, which is killed in mid-run (SEED=n, CONTROL=shuffled, DOWN=seconds)
	@MAKE='$(MAKE)' deploy/demo/prepare build $(BUILD)/build.log all
	@$(PYTHON) deploy/rewards/demo.py

demo-dapo: deps ## train on problems of mixed difficulty with DAPO, beside a control that must not learn (SEED=n, MODE=sync, CONTROL=lr0)
	@MAKE='$(MAKE)' deploy/demo/prepare build $(BUILD)/build.log all
	@$(PYTHON) deploy/dapo/demo.py

check: ## quick, for every commit: builds, layers, lint, dead code, sleeps, contract, demo data, unit tests
	@$(MAKE) --no-print-directory -j2 -s all $(UNIT_TESTS)
	@$(MAKE) --no-print-directory layers lint dead sleeps docs api-check demo-data unit

test: ## everything that must pass before anything is published: check, then real services end to end
	@$(MAKE) --no-print-directory before-e2e
	@$(MAKE) --no-print-directory e2e

.PHONY: before-e2e
before-e2e: # .ci/run has the containers' images made beside it
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory mutants-sample
	@$(MAKE) --no-print-directory -j2 -s model fuzz-corpus
	@$(MAKE) --no-print-directory -s fuzz-protocol COUNT=3
	@$(MAKE) --no-print-directory -s tokenizers STRINGS=2000
	@$(MAKE) --no-print-directory -j2 -s unit-cuda
	@$(MAKE) --no-print-directory -j2 -s faults mpi
	@$(MAKE) --no-print-directory -s manifests
	@$(MAKE) --no-print-directory -s fault SAMPLE=12

test-all: ## the long tiers too: all strings for the tokenizers, families, losses, all mutants, speed, load, benches, sanitizers, schemathesis, the page in a browser, kill -9 of every role, the demo's seeds and controls
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory -s manifests SCHEMAS=1
	@for run in refill minibatch preprocessed visited supervised inflight; do $(MAKE) --no-print-directory -s fault RUN=$$run || exit 1; done
	@$(MAKE) --no-print-directory tokenizers families losses vllm sglang verifiers fuzz mutants speed load long bench-smoke whole-size asan ubsan tsan contract test-page endurance
	@$(MAKE) --no-print-directory -s fuzz-protocol SEED=1000 STEPS=400 COUNT=100
	$(PYTHON) tests/e2e/test_inflight_kills.py
	$(PYTHON) tests/e2e/test_drawn_runs.py 1000 40
	tests/e2e/demo-seeds
	$(PYTHON) deploy/rewards/demo.py
	CONTROL=shuffled $(PYTHON) deploy/rewards/demo.py
	tests/e2e/demo-dapo

families: $(BUILD)/tests/model/test_families ## compare 50 random shapes of every family with transformers (TORCH_PYTHON=python that has it, else by pip, into build/; SEED=n, SHAPES=n)
	@BUILD=$(BUILD) tests/golden/check-families $<

losses: all ## hold the recipes' losses and gradients against TRL's, on the same rollouts (by pip, into build/: 6 GB; NAMES=grpo,rloo)
	@$(PYTHON) tests/losses/compare

vllm: all ## have the real vLLM sample whole runs, on CPUs, through a rollout-agent (by pip, into build/: 6 GB)
	@$(PYTHON) tests/vllm/run

sglang: all ## have the real SGLang do the same (by pip, into build/: 6 GB)
	@$(PYTHON) tests/sglang/run

verifiers: $(BUILD)/tests/verifiers/judge ## hold the verifier math against math-verify (by pip, into build/: 115 MB; SEED=n)
	@$(PYTHON) tests/verifiers/compare --judge $< $(if $(SEED),--seed $(SEED))

fuzz: ## fuzz what reads hostile bytes, under sanitizers (needs Debian's clang; TARGETS=json,wire; SECONDS=600 a target)
	@command -v clang >/dev/null || { echo "make fuzz: there is no clang (Debian: clang, libclang-rt-14-dev)"; exit 1; }
	@$(FUZZ_BUILD) $(FUZZ_CHOSEN:%=$(BUILD)/fuzz/tests/fuzz/fuzz_%)
	@tests/fuzz/run $(BUILD)/fuzz $(or $(SECONDS),600) $(FUZZ_CHOSEN)

fuzz-corpus: $(FUZZ_TARGETS:%=$(BUILD)/tests/fuzz/corpus_%) ## give every fuzz target its committed inputs once (no clang)
	@$(PYTHON) tests/fuzz/make_corpus.py --check
	@for t in $(FUZZ_TARGETS); do $(BUILD)/tests/fuzz/corpus_$$t tests/fuzz/corpus/$$t || { echo "fuzz-corpus: $$t broke"; exit 1; }; done

fuzz-protocol: $(BUILD)/tests/fuzz/protocol ## random messages to a whole coordinator, invariants after each (SEED=1, STEPS=200, COUNT=1)
	@$< $(or $(SEED),1) $(or $(STEPS),200) $(or $(COUNT),1)

model: ## check the protocol's model by spin, and that taking out a check breaks it (Debian's spin)
	@$(PYTHON) tests/model/check

endurance: all ## thousands of rounds with restarts and churn: memory, descriptors, threads, database, time (ROUNDS=10000)
	@$(PYTHON) tests/e2e/endurance $(or $(ROUNDS),10000)

contract: all ## openapi/*.yaml against real services by schemathesis (by pip, into build/), two seeds: minutes
	@$(PYTHON) tests/contract/run

bench: $(BUILD)/bench/instrument ## compare the kernels with the machine's limits and with peers (QUICK=1, PAIRS=n, NAMES=gemm,decode)
	@if [ -n "$(HAS_ONEDNN)" ]; then $(MAKE) --no-print-directory -s $(BUILD)/bench/peer_onednn; else rm -f $(BUILD)/bench/peer_onednn; fi
	@$(PYTHON) tests/bench/bench

bench-pipeline: all $(BUILD)/tests/sim/predict ## measure what overlap is worth, mode by mode, beside RolloutPipe's table (FULL=1, LENGTHS=demo, PAIRS=n, R=32)
	@$(PYTHON) tests/bench/bench-pipeline

bench-inflight: all ## measure learning curves of mode inflight beside sync, per sample and per second (FULL=1, SEEDS=n, LAGS=1,2,4)
	@$(PYTHON) tests/bench/bench-inflight

bench-coordinator: $(BENCH_COORDINATOR) ## measure durable grants and results beside etcd and Redis Streams (WORKERS=10,100, BASE=another coordinator)
	@$(PYTHON) tests/bench/bench-coordinator

bench-publish: all $(BUILD)/bench/publish_load ## measure how long a version takes until a server has staged it, beside copy and SHA-256 (SHAPE=0.6b|quarter, TLS=1)
	@$(PYTHON) tests/bench/bench-publish

whole-size: all ## a 0.6B model, all three services, rounds of 4 x 4 x 256 tokens in 20 GB, and in 15 GB with a mapped optimizer (10 minutes; 25 GB of disk; BENCH_TRL_PYTHON=.. for TRL beside it)
	@$(PYTHON) tests/bench/whole-size

bench-trl: all ## run the demo beside TRL's GRPOTrainer, from the same base (by pip, into build/: 6 GB; PAIRS=n, STEPS=n)
	@$(PYTHON) tests/bench/bench-trl

test-page: all ## look at the page in a headless Chromium: views, live runs, keyboard, hostile text, long runs (chromium from Debian, 300 MB; pictures in build/page)
	$(PYTHON) -m pytest -q -p no:cacheprovider tests/page

test-compose: ## run the images and the containers on a real docker engine, disturbed in every way (skipped where none answers; BOUNDED=1: three and a half minutes of it)
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider --durations=0 --durations-min=1 $(if $(BOUNDED),-m bounded) tests/compose

test-bochs: ## run the AMX kernels on an emulated CPU that has AMX, about an hour (BOCHS=/path/to/bochs, else skipped)
	@tests/bochs/run || [ $$? = 77 ]

e2e: ## run the end-to-end tests over real processes, E2E_JOBS files at once (needs `make all faults mpi`)
	$(PYTHON) -m pytest -q -p no:cacheprovider -n $(E2E_JOBS) --dist loadfile -m "not alone" tests/e2e
	$(PYTHON) -m pytest -q -p no:cacheprovider -m alone tests/e2e

long: ## run the end-to-end tests that take long and show more of the same (needs `make all faults mpi`)
	$(PYTHON) -m pytest -q -p no:cacheprovider -m long tests/e2e

load: ## time health checks under load, on an otherwise idle machine (needs `make all`)
	$(PYTHON) -m pytest -q -p no:cacheprovider -m load -rP tests/e2e/test_load.py

bench-smoke: ## run every benchmark at its smallest size, to see that it measures (needs `make all`)
	$(PYTHON) -m pytest -q -p no:cacheprovider -m bench tests/e2e

faults: all ## build the services with fault injection, in build/faults, and run the unit tests of the faults
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/faults PLAIN=$(BUILD) CFLAGS="$(CFLAGS) -DLEASEHOLD_FAULTS" all mpi unit-faults
.PHONY: unit-faults
FAULT_TESTS := $(addprefix $(BUILD)/tests/,base/test_fault coordinator/test_lease_life generation-server/test_fault trainer-server/test_fault)
unit-faults: $(FAULT_TESTS) # a normal build can only test that the faults are absent
	@tests/tools/run-unit $^

fault: all $(SHIM) ## strike the services at every call that a run comes to: kills, power losses, failures, full disks, the network (SEED=n, KINDS=kill,net, JOBS=n, MOST=n of a kind, SAMPLE=n, AT=function, FULL=1, RUN=supervised)
	@$(PYTHON) tests/fault/run.py --seed $(or $(SEED),1) --jobs $(or $(JOBS),4) $(if $(KINDS),--kinds $(KINDS)) $(if $(MOST),--most $(MOST)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(AT),--at '$(AT)') $(if $(FULL),--full) $(if $(RUN),--run $(RUN))

mpi: $(BUILD)/bin/trainer-server-mpi $(BUILD)/bin/generation-server-mpi $(BUILD)/tests/ranks/check_comm ## build the programs for mpirun: a trainer of several processes, servers beside it, the comm's test

nccl: ## build the comm between GPUs and its test for a machine with several (skipped where NCCL is missing)
	@if [ -n "$(HAS_NCCL)" ]; then $(MAKE) --no-print-directory -s $(BUILD)/tests/ranks/check_nccl; else echo "nccl: no nccl.h here, nothing was built"; fi

cuda: all ## build everything with CUDA, in build/cuda (needs nvcc; NCCL=1: with pushes over NCCL, in build/cuda-nccl)
	@if [ ! -x "$(NVCC)" ]; then echo "make cuda: there is no nvcc ($(NVCC)); NVCC=/path/to/nvcc names one"; exit 1; fi
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/cuda$(if $(NCCL),-nccl) PLAIN=$(BUILD) CUDA=1 cuda-programs
.PHONY: cuda-programs
CUDA_RANKS = $(BUILD)/bin/trainer-server-mpi $(if $(OBJ_link),$(BUILD)/tests/ranks/check_nccl)
cuda-programs: all $(CUDA_TESTS) $(BUILD)/tests/cuda/bench $(if $(HAS_MPI),$(CUDA_RANKS)) # with MPI and NCCL where they are

layers: circles ## check includes between modules and rooms, libraries with one user, and circles (needs `make all`)
	@$(PYTHON) tests/tools/check-layers

docs: ## check that what the READMEs name exists and that their tables are the code's (needs `make all`)
	@$(PYTHON) tests/tools/check-docs

api-check: ## check openapi/*.yaml against the route tables (the end-to-end tests judge real answers by it)
	@$(PYTHON) tests/tools/check-api
	@$(PYTHON) tests/tools/page-contract

demo-data: ## check that the demo's data files are what their script makes, without overlap between them
	@$(PYTHON) tests/tools/check-demo-data

mutants: ## run the unit tests against every mutant of the coordinator's pure modules, many minutes (tests/tools/mutants MODULE ...: of some)
	@$(PYTHON) tests/tools/mutants
mutants-sample: ## the same for one mutant in fifteen, always the same ones
	@$(PYTHON) tests/tools/mutants --sample

circles: ## refuse circles of files (needs `make all`)
	@$(PYTHON) tests/tools/check-circles

length: ## refuse functions over 120 lines, files over 900 and lines over 120 columns; list those over 70 and 800
	@$(PYTHON) tests/tools/check-length
sleeps: ## refuse sleeping in unit tests, but in those about a real deadline
	@$(PYTHON) tests/tools/check-sleeps
dead: ## find functions and macros of services/ and common/ that only tests use
	@$(PYTHON) tests/tools/check-dead

lint: length ## check the length of functions and files, and the shell scripts with shellcheck where it is installed
	@if command -v shellcheck >/dev/null; then git grep -lE '^#!.*[ /]+(ba|da)?sh$$' | xargs shellcheck -S warning; else echo "lint: no shellcheck here, the shell scripts were not looked at"; fi

# Sanitizers, each a build of its own; there are no suppressions.  The instrumentation confuses the compiler's truncation warnings, which stay on everywhere
# else; instrumented kernels take minutes to compile at -O3; and how fast they are under a sanitizer says nothing.
SAN_BUILD = $(MAKE) --no-print-directory -j2 -s BUILD=$(BUILD)/$@ CFLAGS="-O1 -g1 -fno-omit-frame-pointer -fno-var-tracking-assignments -Wno-format-truncation"
SAN_E2E   = LEASEHOLD_TEST_BIN=$(abspath $(BUILD)/$@/bin) LEASEHOLD_TEST_BASE_ROUNDS=4 $(PYTHON) -m pytest -q -p no:cacheprovider tests/e2e -k
SAN_RUNS := learns or slow_wrong_and_killed or plain_requests or queue or (three_unlike and not minibatch) or pushes_while or stopping_in or proxies or worker_that_lies or comes_too_late or one_wrong or peer_that_lies_about or drawn or put_together
SAN_JOBS ?= 2
.PHONY: san-unit
san-unit: $(UNIT_TESTS) # SAN_JOBS at once
	@printf '%s\n' $^ | xargs -P$(SAN_JOBS) -n1 tests/tools/run-unit
asan: export ASAN_OPTIONS = allocator_may_return_null=1 quarantine_size_mb=16
asan: ## unit and end-to-end tests under the address, leak and undefined-behaviour sanitizers
	@$(SAN_BUILD) ISA_OPT=-O1 SAN="-fsanitize=address,undefined -fno-sanitize-recover=all" all san-unit fuzz-corpus
	@$(SAN_E2E) "$(SAN_RUNS) or test_hostile or malformed or slow_and_broken or hang_up or lying_files"
ubsan: ## unit tests under the undefined-behaviour sanitizer alone (asan has it too)
	@$(SAN_BUILD) ISA_OPT=-O1 SAN="-fsanitize=undefined -fno-sanitize-recover=all" san-unit
tsan: export TSAN_OPTIONS = halt_on_error=1 allocator_may_return_null=1
tsan: ## unit and end-to-end tests under the thread sanitizer
	@$(SAN_BUILD) ISA_OPT=-O2 SAN="-fsanitize=thread" all san-unit
	@$(SAN_E2E) "$(SAN_RUNS)"

PREFIX ?= /usr/local
INSTALLED = $(foreach s,$(SERVICES) leasehold,$(BUILD)/bin/$(s)) $(wildcard $(BUILD)/bin/*-mpi)
install: all ## copy the programs, those for mpirun if `make mpi` has built them, their manual pages and systemd units to DESTDIR/PREFIX
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/man/man8" "$(DESTDIR)$(PREFIX)/lib/systemd/system"
	install -m 755 $(INSTALLED) "$(DESTDIR)$(PREFIX)/bin"
	umask 022; for p in $(INSTALLED); do deploy/operation/man-page $$p >"$(DESTDIR)$(PREFIX)/share/man/man8/$${p##*/}.8" || exit 1; done
	umask 022; for u in deploy/operation/*.service; do sed 's|@PREFIX@|$(PREFIX)|' $$u >"$(DESTDIR)$(PREFIX)/lib/systemd/system/$${u##*/}" || exit 1; done

clean: ## remove build/
	rm -rf $(BUILD)

.PRECIOUS: $(BUILD)/obj/%.o $(BUILD)/obj/%.tiles.o $(BUILD)/obj/%.cu.o $(BUILD)/emulated/%.c.o $(BUILD)/obj/common/model/cpu/isa/%.o
-include $(shell find $(BUILD)/obj $(BUILD)/emulated -name '*.d' 2>/dev/null)
