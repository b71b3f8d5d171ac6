//go:build freeze

package heartbeat

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// scale makes the limits a tenth, so that a test need not wait for minutes.
const scale = 10

// freezeFile in the state directory says what is frozen, one name in a line.
const freezeFile = "freeze"

// freeze holds up the loop that calls it for as long as its name stands in the file.
func freeze(name string) {
	for Frozen(name) {
		time.Sleep(5 * time.Millisecond)
	}
}

// Frozen tells whether the test wants this to hang.
func Frozen(name string) bool {
	at := slices.Index(os.Args, "--state-dir")
	if at < 0 || at+1 == len(os.Args) {
		return false
	}
	content, err := os.ReadFile(filepath.Join(os.Args[at+1], freezeFile))
	return err == nil && slices.Contains(strings.Split(string(content), "\n"), name)
}
