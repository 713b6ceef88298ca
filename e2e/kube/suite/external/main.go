// Command external is Kubernetes' External.Storage suite and nothing else of its end-to-end tests: those of a CSI driver
// that -storage.testdriver describes. The program of all tests imports modules that no Go proxy has.
//
// The command ginkgo runs it in parallel.
package main

import (
	"flag"
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/storage/external"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
)

// result is what ginkgo reports to in place of go test.
type result struct{ failed bool }

func (r *result) Fail() { r.failed = true }

func main() {
	// The command ginkgo passes flags of go test.
	testing.Init()
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)

	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	run := result{}
	ginkgo.RunSpecs(&run, "External.Storage", suite, reporter)
	if run.failed {
		os.Exit(1)
	}
}
