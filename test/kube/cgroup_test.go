package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTierOf(t *testing.T) {
	for text, want := range map[string]string{
		"3:cpu:/waggle-tier-kube-1\n0::/\n":                                    "",
		"0::/waggle-tier-kube-7\n":                                             "/waggle-tier-kube-7",
		"1:pids:/\n0::/a/waggle-tier-kube-7/waggle-kube-9-1/programs\n":        "/a/waggle-tier-kube-7",
		"0::/waggle-tier-kube-7/waggle-kube-9-1/programs/waggle-tier-leaves\n": "/waggle-tier-kube-7/waggle-kube-9-1/programs/waggle-tier-leaves",
		"": "",
	} {
		if got := tierOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestPrivilegedStaleCgroups_AreRemoved checks the next run's cleanup after both processes of a run were killed simultaneously.
func TestPrivilegedStaleCgroups_AreRemoved(t *testing.T) {
	stale, live, young := cgroupName()+"-stale", cgroupName()+"-live", cgroupName()+"-young"
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = process.Process.Kill(), process.Wait()
		for _, name := range []string{stale, live, young} {
			if err := removeCgroups(name); err != nil {
				t.Error(err)
			}
		}
	})
	dirs := map[string][]string{}
	for _, name := range []string{stale, live, young} {
		var err error
		if dirs[name], err = makeCgroups(name + "/kube-1/node-1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range dirs[live] {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(process.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{stale, live} {
		for _, dir := range dirs[name] {
			top := strings.TrimSuffix(dir, "/kube-1/node-1")
			if err := os.Chtimes(top, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	removeStaleCgroups()
	for name, want := range map[string]bool{stale: false, live: true, young: true} {
		for _, dir := range dirs[name] {
			if _, err := os.Stat(dir); (err == nil) != want {
				t.Errorf("%s: there is %v, want %v", dir, err == nil, want)
			}
		}
	}
}
