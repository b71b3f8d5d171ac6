package ciliumnode

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

// machineAnnotation of a CiliumNode names the machine whose agent wrote it: id, host name and, once known, addresses, separated by spaces.
const machineAnnotation = "waggle.io/machine"

// machine identifies the machine of this agent. It is the same after a restart of the agent, and different after a reboot.
type machine struct {
	id     string // of this boot and network namespace; empty when the kernel does not report it
	bootID string // empty when the kernel does not report it
	host   string // host name
}

// thisMachine reads the identity of this machine. Nodes that are containers (kind) share a boot id and differ by their network namespaces.
func thisMachine(procfs string) machine {
	m := machine{bootID: bootID(procfs), host: "unknown"}
	if host := strings.Join(strings.Fields(hostName()), ""); host != "" {
		m.host = host
	}
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil || m.bootID == "" {
		return m
	}
	sum := sha256.Sum256([]byte(m.bootID + " " + namespace))
	m.id = hex.EncodeToString(sum[:8])
	return m
}

func hostName() string {
	name, _ := os.Hostname() // empty when the kernel does not report it
	return name
}

// bootID returns the id of this boot of the machine; empty when the kernel does not report it. In the DaemonSet's pod --procfs
// contains only the settings of networks, and the container's own procfs has the boot id.
func bootID(procfs string) string {
	for _, dir := range []string{procfs, "/proc"} {
		if text, err := os.ReadFile(filepath.Join(dir, "sys/kernel/random/boot_id")); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

// annotation returns the value of machineAnnotation; empty without an id. While the addresses of this node are not known, the value of a previous run of the
// agent on this machine stays.
func (m machine) annotation(have string, local *localnode.LocalNode) string {
	fields := []string{m.id, m.host}
	if local != nil {
		for _, addr := range []netip.Addr{local.IPv4.NodeIP, local.IPv6.NodeIP} {
			if addr.IsValid() {
				fields = append(fields, addr.String())
			}
		}
	}
	if m.id == "" || len(fields) == 2 && idOf(have) == m.id {
		return have
	}
	return strings.Join(fields, " ")
}

// idOf returns the id in a value of machineAnnotation; empty without one.
func idOf(annotation string) string {
	id, _, _ := strings.Cut(annotation, " ")
	return id
}

// isLastWriter reports whether an agent on this machine was the last writer of a CiliumNode.
func (m machine) isLastWriter(n *ciliumv2.CiliumNode) bool {
	return idOf(n.Annotations[machineAnnotation]) == m.id && n.Spec.BootID == m.bootID
}

// rival describes the other machine whose agent wrote a CiliumNode last. It is empty when this machine is the last writer or the object does not name the
// writer: a user created it, or an agent that writes neither annotation nor boot id.
func (m machine) rival(n *ciliumv2.CiliumNode) string {
	annotation := n.Annotations[machineAnnotation]
	switch {
	case annotation != "" && idOf(annotation) != m.id:
		fields := strings.Fields(annotation)
		text := "host " + strings.Join(fields[min(1, len(fields)):min(2, len(fields))], "")
		if addrs := fields[min(2, len(fields)):]; len(addrs) > 0 {
			text += " (" + strings.Join(addrs, ", ") + ")"
		}
		return printable.Short(text, maxRival)
	case n.Spec.BootID != "" && n.Spec.BootID != m.bootID:
		var addrs []string // of an agent that does not write the annotation
		for _, a := range n.Spec.Addresses {
			if !slices.Contains(addrs, a.IP) {
				addrs = append(addrs, a.IP)
			}
		}
		return printable.Short("a host that publishes "+strings.Join(addrs, ", "), maxRival)
	}
	return ""
}

// maxRival limits the text about another machine, in bytes.
const maxRival = 200
