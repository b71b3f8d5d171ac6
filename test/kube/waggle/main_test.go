package waggle_test

import (
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }
