package kubeapi_test

import (
	"os"
	"testing"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

func TestMain(m *testing.M) {
	kubetest.ForgetRealTime()
	os.Exit(m.Run())
}
