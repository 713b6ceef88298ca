//go:build tools

// Package tools names the programs that `make kube` builds from this module, so that go.sum covers them.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
