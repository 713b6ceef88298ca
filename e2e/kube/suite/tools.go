//go:build tools

// Package tools names the programs that `make suite` builds from this module, so that go.sum covers them.
package tools

import (
	_ "ferrovirt/e2e/kube/suite/external"
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
