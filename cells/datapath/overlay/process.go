package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// processOf returns the name of a process that uses a UDP port in the network namespace of the agent; "" when there is none. It reads procfs, where the columns
// of net/udp are: number, local address and port, remote ones, state, queues, timer, retransmissions, uid, timeout, inode (proc_pid_net(5)).
func processOf(procfs string, port uint16) (string, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"udp", "udp6"} {
		text, err := os.ReadFile(filepath.Join(procfs, "thread-self", "net", table))
		if os.IsNotExist(err) {
			continue // no IPv6
		}
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[9] != "0" {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(inodes) == 0 {
		return "", nil
	}
	files, err := filepath.Glob(filepath.Join(procfs, "[0-9]*", "fd", "*"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if target, err := os.Readlink(file); err != nil || !inodes[target] {
			continue // a process that ended, or another file
		}
		process := filepath.Dir(filepath.Dir(file))
		name, _ := os.ReadFile(filepath.Join(process, "comm"))
		return fmt.Sprintf("process %s (%s)", filepath.Base(process), strings.TrimSpace(string(name))), nil
	}
	return "", nil
}
