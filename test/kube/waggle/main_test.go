package waggle_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// TestMain runs more tests in parallel than there are CPUs, because they mostly wait. The command line overrides the number.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(1+runtime.GOMAXPROCS(0))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	kube.Main(m)
}
