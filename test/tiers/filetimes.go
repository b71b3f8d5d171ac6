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

// gitIn is a call of git for the clone in a folder. A git that runs this program, as in "git rebase -x", names its own clone in the environment.
func gitIn(root string, args ...string) *exec.Cmd {
	cmd := exec.Command("git", args...)
	cmd.Dir = root
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_") })
	return cmd
}

// setFileTimes gives each file of a clean clone a modification time that follows from its content. Go's test cache compares the
// times and sizes of the files that a test has read: with these, two clones of one tree share their results. Folders get one
// time, since the cache compares what they hold. It changes nothing when the clone has changes that are not committed.
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

// epoch is the first second that files get, long before any of them was written.
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
