package sysctlrecord

import (
	"iter"
	"strings"

	"github.com/waggle-net/waggle/pkg/podlink"
)

// effects yields a setting with its new value, and the settings that the kernel changes with it.
func effects(k Kernel, name, value string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if !yield(name, value) {
			return
		}
		dir, leaf := leads(name)
		if dir == "" {
			return
		}
		devices, _ := k.List(dir) // no devices if the family is missing
		for _, device := range devices {
			follower := dir + "/" + device + "/" + leaf
			if follower != name && !ofOurDevice(follower) && !yield(follower, value) {
				return
			}
		}
		if name == ipForward {
			yield("net/ipv4/conf/all/accept_redirects", map[string]string{"0": "1", "1": "0"}[value])
		}
	}
}

const ipForward = "net/ipv4/ip_forward"

// leads returns the directory of devices and the name of the setting of every device that the kernel sets with the given one. The directory is empty if there
// is none.
func leads(name string) (dir, leaf string) {
	switch name {
	case ipForward, "net/ipv4/conf/all/forwarding":
		return "net/ipv4/conf", "forwarding"
	case "net/ipv6/conf/all/forwarding":
		return "net/ipv6/conf", "forwarding"
	case "net/ipv6/conf/all/disable_ipv6":
		return "net/ipv6/conf", "disable_ipv6"
	}
	return "", ""
}

// ofOurDevice reports whether a setting belongs to a device of the agent.
func ofOurDevice(name string) bool {
	parts := strings.Split(name, "/")
	if len(parts) != 5 || parts[2] != "conf" && parts[2] != "neigh" {
		return false
	}
	switch parts[3] {
	case podlink.HostDevice, podlink.NetDevice, podlink.HoldDevice, podlink.HoldPeer, podlink.ChecksumDevice, podlink.ChecksumPeer:
		return true
	}
	return podlink.IsHostName(parts[3])
}
