package node_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// lasting returns all state of a settled node that outlives its agent, including pins. It excludes the kernel's IDs of programs, which are new in each run.
func lasting(t *testing.T, node *nodekit.Node) []string {
	t.Helper()
	settled(t, node)
	facts, err := lastingNow(node)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// programID matches the end of the pins of steps: the kernel's ID of a program, which changes with each start.
var programID = regexp.MustCompile(`/steps/(\w+)_\d+$`)

func lastingNow(node *nodekit.Node) ([]string, error) {
	facts, err := leftovers(node)
	if err != nil {
		return nil, err
	}
	facts = slices.DeleteFunc(facts, func(fact string) bool { return strings.HasPrefix(fact, "attachments: ") })
	err = node.Do(func() error {
		return filepath.WalkDir(node.BPFRoot(), func(path string, entry fs.DirEntry, err error) error {
			if err == nil {
				facts = append(facts, "pin "+programID.ReplaceAllString(strings.TrimPrefix(path, node.BPFRoot()), "/steps/${1}_ID"))
			}
			return err
		})
	})
	return facts, err
}

// eventuallyLasting waits until a node has the same lasting state as before.
func eventuallyLasting(t *testing.T, node *nodekit.Node, before []string) {
	t.Helper()
	eventually(t, func() error {
		after, err := lastingNow(node)
		if err != nil {
			return err
		}
		return nodekit.Changes(before, after)
	})
}
