// Package kubeproxy_test tests Waggle beside the real kube-proxy, which serves all Services at first, with a tunnel and with routes, and is then removed.
package kubeproxy_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
