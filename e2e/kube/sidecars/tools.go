//go:build tools

// Package tools names the programs that `make kube` builds from this module, so that go.sum covers them; it
// takes the definitions of snapshots from the module of their types. In one module what they share is built once; their
// versions are those that name the same client-go.
package tools

import (
	_ "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"
	_ "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
)
