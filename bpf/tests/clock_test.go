package tests

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

// printCtNow makes the test below print the time, in a separate process.
const printCtNow = "WAGGLE_TEST_PRINT_CT_NOW"

// Clocks of the agent that differ from the kernel's do not change the lifetime of flows.
func TestPrivilegedCtNow_EqualsKernelClockInTimeNamespaces(t *testing.T) {
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(printCtNow) != "" {
		fmt.Printf("now=%d\n", now)
		return
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--time", "--monotonic", "864000", "--boottime", "864000", os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), printCtNow+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, text, _ := strings.Cut(string(out), "now=")
	text, _, _ = strings.Cut(text, "\n")
	there, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	after, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	if uint32(there) < now || uint32(there) > after {
		t.Errorf("ten days ahead the programs' clock is read as %d, want %d to %d", there, now, after)
	}
}
