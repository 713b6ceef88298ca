# Every target does its own set-up; on a fresh Debian 12 with Rust on it, `make demo` or `make test` is enough.
#
#   build       the programs, optimised            test        what CI runs: formatting, lints, licences, tests
#   install     all of them                        PREFIX      where to, /usr/local
#   demo        an image, and guests from YAML     soak        the same tests with the full counts
#   deps        Debian packages                    bench       speed and memory against the named peers
#   check       lints and unit tests of what differs from main (BASE=REV: from there), for daily work
#   image       the container image                advisories  dependencies with known holes (needs the network)
#   kube        Kubernetes' programs, from source  cluster     a Kubernetes node with the platform; cluster-down ends it
#
# make demo IMAGE=https://…   imports and boots an image of yours
# make demo CLUSTER=1         runs a first VM in the cluster of make cluster
# make bench ROWS=zlib        measures only the rows whose name contains the word

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

# Outside the checkout, so that a fresh clone reuses what an earlier one built.
CACHE := $(HOME)/.cache/ferrovirt
export CARGO_TARGET_DIR ?= $(CACHE)/target
TOOLS := $(CACHE)/tools
DENY_VERSION := 0.20.2
export PATH := $(TOOLS)/bin:/usr/sbin:/sbin:$(PATH)

TRIPLE := x86_64-unknown-linux-gnu
IMAGE ?=
ROWS ?=
ROUNDS ?= 5

# Building; demo; peers and judges of the tests and benchmarks.
PACKAGES := build-essential \
	qemu-system-x86 qemu-utils nginx-light busybox-static cpio mtools dosfstools syslinux syslinux-common fdisk \
	curl gzip pigz xz-utils zstd 7zip nbdkit docker-registry mmdebstrap e2fsprogs xfsprogs btrfs-progs util-linux strace \
	containerd runc iproute2 nftables iptables libvirt-clients libxml2-utils \
	libvirt-daemon libvirt-daemon-driver-qemu xorriso ovmf swtpm swtpm-tools systemd \
	dropbear-bin openssh-client socat chromium

# These programs run inside users' images, which may hold nothing but a disk: they are linked statically. Tests find the
# first by this variable; container-disk is built beside it.
export FERROVIRT_CONTAINERIMAGE_SERVER := $(CARGO_TARGET_DIR)/$(TRIPLE)/release/cdi-containerimage-server

# Of the programs and the images. `make test` runs the programs that its own build makes anyway, with debug information
# removed in the images.
PROFILE := release
test check-tests: PROFILE := debug

# The container images, OCI archives: of all programs, and of virt-launcher with QEMU. Tests find them by these variables.
export FERROVIRT_IMAGE = $(CARGO_TARGET_DIR)/image/ferrovirt-$(PROFILE).oci.tar
export FERROVIRT_LAUNCHER_IMAGE = $(CARGO_TARGET_DIR)/image/ferrovirt-launcher-$(PROFILE).oci.tar

# Run beside the cluster of its tests.
export FERROVIRT_MACPOOL = $(CARGO_TARGET_DIR)/$(PROFILE)/macpool

# Copied to hosts of any distribution: linked statically too.
export FERROVIRT_CNI := $(CARGO_TARGET_DIR)/$(TRIPLE)/release/cni

# Most tests wait for something other than a processor.
export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))

# The Go reference plugins and cnitool, which the cluster's node has too; e2e/kube/build names the folder by the same hash.
JUDGES := e2e/kube/judges
export FERROVIRT_PEERS := $(CACHE)/kube/judges-$(shell cat $(JUDGES)/go.mod $(JUDGES)/go.sum $(JUDGES)/tools.go | sha256sum | cut -c1-12)

.PHONY: build install programs server cni peers demo demo-programs deps test check fmt-check clippy deny check-tests soak bench advisories tools image kube suite oldest root cluster cluster-down

deps:
	@missing=(); for package in $(PACKAGES); do \
	  [ "$$(dpkg-query -W -f='$${db:Status-Status}' "$$package" 2>/dev/null)" = installed ] || missing+=("$$package"); \
	done; \
	if [ "$${#missing[@]}" -gt 0 ]; then \
	  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	  $$sudo apt-get update; \
	  DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y --no-install-recommends "$${missing[@]}"; \
	fi

build: programs server cni

# kubectl finds `kubectl virt` by the program's name.
PREFIX ?= /usr/local
INSTALLED := $(addprefix $(CARGO_TARGET_DIR)/release/,kubectl-virt importer cdi-source-update-poller operator uploadproxy uploadserver \
	clone-source hpp-csi macpool virt-node virt-launcher virt-agent) \
	$(addprefix $(CARGO_TARGET_DIR)/$(TRIPLE)/release/,cni cdi-containerimage-server container-disk)

install: build
	install -D -t "$(DESTDIR)$(PREFIX)/bin" $(INSTALLED)
	"$$CARGO_TARGET_DIR/release/manual" "$(DESTDIR)$(PREFIX)/share"

# One call of cargo, so that shared dependencies are built once; in `make test`, with the features that the tests have too.
BUILD_release := cargo build --release --locked -p importer -p cdi-source-update-poller -p uploadserver -p uploadproxy \
	-p clone-source -p hpp-csi -p virt-node -p virt-client -p virt-launcher -p virt-agent -p macpool -p operator -p manual
BUILD_debug := cargo build --locked --workspace --all-targets

programs: deps
	$(BUILD_$(PROFILE))

server: deps
	RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --target $(TRIPLE) -p cdi-containerimage-server

cni: deps
	RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --target $(TRIPLE) -p cni

# A part of what `make kube` builds.
peers: deps
	@e2e/kube/build judges

# `make test` has built the image builder with everything else.
IMAGE_release := cargo run --quiet --locked -p image --
IMAGE_debug = "$$CARGO_TARGET_DIR/debug/image" --strip
IMAGE_BUILD = $(IMAGE_$(PROFILE)) --target "$$CARGO_TARGET_DIR" --profile $(PROFILE) --cache $(CACHE)/image

image: build
	$(IMAGE_BUILD) "$$FERROVIRT_IMAGE"
	$(IMAGE_BUILD) --set launcher "$$FERROVIRT_LAUNCHER_IMAGE"

# Built once per version; needs Go.
kube: deps
	@e2e/kube/build

# A node has namespaces, links, mounts and cgroups of its own.
root:
	@[ "$$(id -u)" = 0 ] || { echo "make $(MAKECMDGOALS): root is needed, and its home, where the cache is" >&2; exit 1; }

cluster: root kube image cni
	cargo build --quiet --locked -p e2e
	@"$$CARGO_TARGET_DIR/debug/cluster" up --platform
	@eval "$$("$$CARGO_TARGET_DIR/debug/cluster" up --platform 2> /dev/null)"; demo/cluster --print

cluster-down: root deps
	cargo build --quiet --locked -p e2e
	@"$$CARGO_TARGET_DIR/debug/cluster" down

# What a demo runs, and nothing else; of all packages, so that `make build` uses the same dependencies.
DEMO := importer $(if $(IMAGE),,hpp-csi virt-node virt-launcher)

demo-programs: deps
	@[ -x "$$CARGO_TARGET_DIR/release/$(lastword $(DEMO))" ] || \
	  echo "The first build takes up to half an hour on two processors; later ones take seconds."
	$(BUILD_release) $(addprefix --bin ,$(DEMO))

# With an image of one's own it is imported and booted; else guests run from YAML, too, which takes root.
ifdef CLUSTER
demo: cluster
	@eval "$$("$$CARGO_TARGET_DIR/debug/cluster" up --platform 2> /dev/null)"; demo/cluster
else
demo: demo-programs $(if $(IMAGE),,cni)
	demo/run "$$CARGO_TARGET_DIR/release/importer" "$(IMAGE)"
	@[ -n "$(IMAGE)" ] || { sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -E"; \
	  $$sudo demo/guests "$$CARGO_TARGET_DIR/release" "$$CARGO_TARGET_DIR/$(TRIPLE)/release"; }
endif

# The tests come last, so that the output ends with the runner's lines.
test: deps fmt-check clippy deny check-tests

check: deps cni
	benches/check $(BASE)

fmt-check: deps
	cargo fmt --all --check

clippy: deps
	cargo clippy --locked --workspace --all-targets -- -D warnings

deny: tools
	cargo deny --locked check --hide-inclusion-graph bans licenses sources

# `make test` has built the runner with everything else.
check-tests: deps fmt-check clippy deny server cni kube image
	"$$CARGO_TARGET_DIR/debug/lanes"
	cargo test --quiet --locked --workspace --doc

suite: deps
	@e2e/kube/build suite

# The oldest Kubernetes that the platform supports.
oldest: deps
	@e2e/kube/build oldest

# Which verbs of their roles the platform's accounts used, of each cluster of a soak.
AUDIT := $(CARGO_TARGET_DIR)/audit

soak: export FERROVIRT_CLUSTER_AUDIT := $(AUDIT)
# The bars are for a machine that does nothing else.
soak: export RUST_TEST_THREADS := 1
soak: deps server cni kube suite oldest image
	rm -rf "$(AUDIT)"
	cargo test --locked --workspace --no-run
	FERROVIRT_SOAK=1 "$$CARGO_TARGET_DIR/debug/lanes" --single
	FERROVIRT_SOAK=1 FERROVIRT_PROVISIONER=agent "$$CARGO_TARGET_DIR/debug/lanes" --single e2e/hpp_csi
	FERROVIRT_KUBERNETES=oldest "$$CARGO_TARGET_DIR/debug/lanes" --single e2e/platform
	FERROVIRT_SOAK=1 cargo test --locked --workspace --doc
	cargo test --locked --workspace --test integration -- --ignored daemon_debian:: daemon_releases::
	FERROVIRT_SOAK=1 cargo test --locked -p e2e --test integration hpp_csi::suite:: -- --ignored
	FERROVIRT_SOAK=1 FERROVIRT_PROVISIONER=agent cargo test --locked -p e2e --test integration hpp_csi::suite:: -- --ignored
	cargo test --locked -p e2e --test integration grants:: -- --ignored

bench: build peers
	cargo run --release --locked -p benches --bin bench -- \
	  --importer "$$CARGO_TARGET_DIR/release/importer" --rounds "$(ROUNDS)" --rows "$(ROWS)"

advisories: tools
	cargo deny --locked check advisories

# Built once per version and kept in the cache; the tool's own build folder is removed.
tools: deps
	@if [ "$$(cargo-deny --version 2>/dev/null)" != "cargo-deny $(DENY_VERSION)" ]; then \
	  CARGO_TARGET_DIR=$(TOOLS)/build cargo install --debug --locked --root $(TOOLS) --version $(DENY_VERSION) cargo-deny; \
	  rm -rf $(TOOLS)/build; \
	fi
