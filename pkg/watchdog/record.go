package watchdog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/waggle-net/waggle/pkg/version"
)

const (
	// recordName is the file in the state directory with the stalls of this or the previous run; previousRecordName is the last record that was already
	// reported.
	recordName         = "stall.txt"
	previousRecordName = "stall-before.txt"
	// formerRecordName is the name of the record in builds before the first release, which may have hung before the update.
	formerRecordName = "wedge.txt"
	// maxStacks limits the size of the stacks in bytes, enough for about 500 goroutines.
	maxStacks = 1 << 20
)

// Stacks returns the stacks of all goroutines. They contain numbers and addresses, but no contents of variables.
func Stacks() []byte {
	stacks := make([]byte, maxStacks)
	return stacks[:runtime.Stack(stacks, true)]
}

// Record writes stalls and the stacks of all goroutines to a file for the next start and for operators. It replaces an existing file.
func Record(dir string, lines ...string) (path string, err error) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s waggle-agent %s\n", time.Now().UTC().Format(time.RFC3339), version.String())
	for _, line := range lines {
		fmt.Fprintln(&text, line)
	}
	fmt.Fprintln(&text)
	text.Write(Stacks())
	path = filepath.Join(dir, recordName)
	return path, os.WriteFile(path, text.Bytes(), 0o600)
}

// TakeRecord returns the first lines of the record of a previous run, or an empty string, and moves the record to path. So each record is reported only
// once.
func TakeRecord(dir string) (head, path string, err error) {
	for _, name := range []string{recordName, formerRecordName} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", "", err
		}
		before, _, _ := bytes.Cut(content, []byte("\n\n"))
		path = filepath.Join(dir, previousRecordName)
		return string(before), path, os.Rename(filepath.Join(dir, name), path)
	}
	return "", "", nil
}
