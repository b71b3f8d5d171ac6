package heartbeat

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
	// recordName in the state directory is what hung in this run or the last one, recordBefore what an earlier run reported.
	recordName   = "wedge.txt"
	recordBefore = "wedge-before.txt"
	// maxStacks bounds the stacks of goroutines: some 500 of them.
	maxStacks = 1 << 20
)

// Stacks are those of all goroutines, which hold no contents of variables but numbers and addresses.
func Stacks() []byte {
	stacks := make([]byte, maxStacks)
	return stacks[:runtime.Stack(stacks, true)]
}

// Record leaves for the next run, and for people, what hangs, with the stacks of all goroutines. It replaces an earlier one.
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

// TakeRecord returns the first lines of what an earlier run has left, or nothing, and moves it to the path it returns. So
// each is reported once.
func TakeRecord(dir string) (head, path string, err error) {
	content, err := os.ReadFile(filepath.Join(dir, recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	before, _, _ := bytes.Cut(content, []byte("\n\n"))
	path = filepath.Join(dir, recordBefore)
	return string(before), path, os.Rename(filepath.Join(dir, recordName), path)
}
