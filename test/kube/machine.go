package kube

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Machine lists resources that clusters must not leave on a machine, one a line, for a comparison before and after a test: mounts and processes (inside
// [Contain], only the ones of this program), links and files with names that clusters use, cgroups, and kernel settings that kubelet may change. It omits
// unrelated resources. The cgroups of runs have unique names.
func Machine() (facts []string, err error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if clusterLink.MatchString(l.Name) {
			facts = append(facts, fmt.Sprintf("link %d %s", l.Index, l.Name))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		facts = append(facts, "mount "+strings.TrimSpace(line))
	}
	for what, patterns := range map[string][]string{
		"process": {"/proc/[0-9]*"},
		"cgroup":  {"/sys/fs/cgroup/*/kubepods*", "/sys/fs/cgroup/kubepods*"},
		"file": {stateRoot + "/*", "/etc/cni/*", "/opt/cni*", "/var/lib/kubelet*", "/var/lib/containerd*", "/var/log/pods*",
			"/sys/fs/bpf/waggle*", "/sys/fs/bpf/mounted", "/sys/fs/bpf/of-*"},
	} {
		for _, pattern := range patterns {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return nil, err
			}
			for _, path := range found {
				if what == "process" && zombie(path) {
					continue
				}
				facts = append(facts, what+" "+path)
			}
		}
	}
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/hostname",
		"kernel/keys/root_maxkeys", "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return nil, err
		}
		facts = append(facts, "setting "+name+" "+strings.TrimSpace(string(value)))
	}
	return facts, nil
}

// clusterLink matches the names of links of clusters, of Waggle and of the reference plugins.
var clusterLink = regexp.MustCompile(`^(` + bridgeName + `|port-.*|pods|veth.*|waggle_.*|lxc.*)$`)

// zombie reports whether a process has exited and its parent has not reaped it yet.
func zombie(dir string) bool {
	status, err := os.ReadFile(dir + "/status")
	return err != nil || strings.Contains(string(status), "\nState:\tZ")
}
