package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// gitIn returns a git command for the clone in a folder. If git runs this program, as in "git rebase -x", the environment names git's own clone.
func gitIn(root string, args ...string) *exec.Cmd {
	cmd := exec.Command("git", args...)
	cmd.Dir = root
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_") })
	return cmd
}

// setFileTimes gives each file of a clean clone a modification time that is derived from its content. Go's test cache compares times and sizes of the files
// that a test has read: with derived times, two clones of one tree share their results. All folders get the same time, since the cache compares their
// entries. setFileTimes changes nothing in a clone with uncommitted changes.
func setFileTimes(root string) error {
	git := func(args ...string) ([]byte, error) {
		out, err := gitIn(root, args...).Output()
		if err != nil {
			return nil, fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return out, nil
	}
	changed, err := git("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return err
	}
	if len(changed) > 0 {
		return errors.New("the clone has changes that are not committed, so file times stay as they are")
	}
	list, err := git("ls-files", "-s", "-z")
	if err != nil {
		return err
	}
	folders := map[string]bool{root: true}
	for entry := range bytes.SplitSeq(bytes.Trim(list, "\x00"), []byte{0}) {
		fields, name, _ := strings.Cut(string(entry), "\t")
		mode, rest, _ := strings.Cut(fields, " ")
		id, _, _ := strings.Cut(rest, " ")
		if mode == "120000" {
			continue // Chtimes would follow the link
		}
		at, err := contentTime(id)
		if err != nil {
			return fmt.Errorf("time of %s: %w", name, err)
		}
		path := filepath.Join(root, name)
		if err := os.Chtimes(path, at, at); err != nil {
			return err
		}
		for dir := filepath.Dir(path); !folders[dir]; dir = filepath.Dir(dir) {
			folders[dir] = true
		}
	}
	for dir := range folders {
		if err := os.Chtimes(dir, time.Unix(epoch, 0), time.Unix(epoch, 0)); err != nil {
			return err
		}
	}
	return nil
}

// epoch is the earliest derived time in seconds, long before the creation of any file.
const epoch = 1_000_000_000

// contentTime derives a time from the first 56 bits of a blob's id: 28 bits of seconds, 28 bits of nanoseconds.
func contentTime(id string) (time.Time, error) {
	if len(id) < 14 {
		return time.Time{}, fmt.Errorf("blob id %q is too short", id)
	}
	seconds, err := strconv.ParseInt(id[:7], 16, 64)
	nanos, err2 := strconv.ParseInt(id[7:14], 16, 64)
	return time.Unix(epoch+seconds, nanos), errors.Join(err, err2)
}
