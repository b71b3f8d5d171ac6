//go:build freeze

package heartbeat

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// freezeFile in the state directory lists the names of frozen loops and tables, one a line.
const freezeFile = "freeze"

// freeze blocks the calling loop while its name is in the file.
func freeze(name string) {
	for Frozen(name) {
		time.Sleep(5 * time.Millisecond)
	}
}

// Frozen reports whether the test blocks the loop or table with that name.
func Frozen(name string) bool {
	at := slices.Index(os.Args, "--state-dir")
	if at < 0 || at+1 == len(os.Args) {
		return false
	}
	content, err := os.ReadFile(filepath.Join(os.Args[at+1], freezeFile))
	return err == nil && slices.Contains(strings.Split(string(content), "\n"), name)
}
