package nodekit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Machine describes all resources of a node that an agent might change, one a line: links, addresses, routes and rules of all tables, permanent neighbours,
// traffic control, nftables, kernel settings, mounts, and the files in the node's folder including pinned objects. It is slower and more complete than
// [Node.Snapshot].
func (n *Node) Machine() (facts []string, err error) {
	err = n.Do(func() error {
		for _, add := range []func() ([]string, error){networkFacts, settingFacts, n.mountFacts, n.fileFacts} {
			more, err := add()
			if err != nil {
				return err
			}
			facts = append(facts, more...)
		}
		return nil
	})
	slices.Sort(facts)
	return facts, err
}

// timers matches running timers in the attributes of bridges.
var timers = regexp.MustCompile(`[a-z]+_timer [0-9.]+`)

func networkFacts() (facts []string, err error) {
	commands := []string{"ip -o -d link", "ip -o addr", "ip -4 route show table all", "ip -6 route show table all", "ip -4 rule", "ip -6 rule",
		"ip neigh show nud permanent", "tc qdisc", "nft list ruleset"}
	out, err := exec.Command("ip", "-br", "link").Output()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		commands = append(commands, "tc filter show dev "+name+" ingress", "tc filter show dev "+name+" egress")
	}
	for _, command := range commands {
		words := strings.Fields(command)
		out, err := exec.Command(words[0], words[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		for line := range strings.Lines(string(out)) {
			facts = append(facts, command+": "+timers.ReplaceAllString(strings.Join(strings.Fields(line), " "), ""))
		}
	}
	return facts, nil
}

// settingFacts returns the kernel settings of the namespace. It omits counters and unreadable files.
func settingFacts() (facts []string, err error) {
	err = filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_count") {
			return err
		}
		if value, err := os.ReadFile(path); err == nil {
			facts = append(facts, "sysctl "+path+": "+strings.TrimSpace(string(value)))
		}
		return nil
	})
	return facts, err
}

func (n *Node) mountFacts() (facts []string, err error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if where := strings.Fields(line)[4]; strings.HasPrefix(where, n.Dir) && !strings.HasPrefix(where, n.path("netns")) && where != n.path("proc") {
			facts = append(facts, "mount "+where)
		}
	}
	return facts, err
}

// fileFacts lists the node's files, except files of this package: manifests, namespaces of pods, files of the runtime's library and the agent's log.
func (n *Node) fileFacts() (facts []string, err error) {
	own := []string{n.path("netns"), n.path("cni-cache"), n.path("agent.log"), n.path("proc")}
	err = filepath.WalkDir(n.Dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != n.Dir {
			return nil // removed concurrently
		}
		if err != nil {
			return err
		}
		if slices.Contains(own, path) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		fact := fmt.Sprintf("file %s %s", path, d.Type())
		if d.Type().IsRegular() && !strings.HasPrefix(path, n.BPFRoot()) {
			text, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			fact += fmt.Sprintf(" of %d bytes", len(text))
		}
		facts = append(facts, fact)
		return nil
	})
	return facts, err
}
