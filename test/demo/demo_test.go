package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// binDir holds the programs that the demonstration shows.
var binDir string

// TestMain runs the tests as a process of its own, as main does it with the demonstration.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // each test says why it is skipped
	}
	os.Exit(nodekit.Contain(func() int {
		dir, err := os.MkdirTemp("", "waggle-demo-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			err = nodekit.BuildPrograms(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		binDir = dir
		return m.Run()
	}))
}

// The demonstration judges its steps itself.
func TestPrivilegedDemo(t *testing.T) {
	for name, plan := range map[string]func(*demo) []step{"one node": (*demo).oneNode, "two nodes": (*demo).twoNodes} {
		t.Run(name, func(t *testing.T) {
			testnet.RequirePrivileges(t)
			d := &demo{out: t.Output(), bin: binDir, start: time.Now()}
			if err := d.run(plan(d)); err != nil {
				t.Fatal(err)
			}
		})
	}
}
