//go:build freeze

package heartbeat

import (
	"os"
	"slices"
	"strings"
	"time"
)

// scale makes the limits a tenth, so that a test need not wait for minutes.
const scale = 10

// freezeVariable names the file that says what is frozen, one name in a line.
const freezeVariable = "WAGGLE_FREEZE"

// freeze holds up the loop that calls it for as long as its name stands in the file.
func freeze(name string) {
	for Frozen(name) {
		time.Sleep(5 * time.Millisecond)
	}
}

// Frozen tells whether the test wants this to hang.
func Frozen(name string) bool {
	content, err := os.ReadFile(os.Getenv(freezeVariable))
	return err == nil && slices.Contains(strings.Split(string(content), "\n"), name)
}
