package events_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// The page on the datapath lists every reason of the programs with its text, and no other reason.
func TestReason_Documented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../Documentation/datapath.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := enum(t, "drop_reason")
	for name, value := range reasons {
		if row := fmt.Sprintf("\n| %d | %s |", value, events.Reason(value)); value != 0 && !strings.Contains(string(page), row) {
			t.Errorf("%s: the page has no row beginning with %q", name, row)
		}
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		var n int
		if _, err := fmt.Sscanf(line, "| %d |", &n); err == nil {
			rows++
		}
	}
	if want := len(reasons) - 1; rows != want {
		t.Errorf("the page has %d reasons, the programs have %d", rows, want)
	}
}
