package node_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// firewallRootEnv names the root of a Debian system with ufw, firewalld and Docker: hack/firewall-root creates one.
const firewallRootEnv = "FIREWALL_ROOT"

// programFirewalls lists the firewall of each node of a cluster, as a program with the configuration of Debian's package.
var programFirewalls = []firewall{
	// Docker of Debian 12 changes no IPv6 rules.
	{name: "Docker", chain: "chain FORWARD of nftables table ip filter", start: func(t *testing.T, n *nodekit.Node) {
		runProgram(t, n, `dockerd --storage-driver vfs >/var/log/dockerd 2>&1 & echo $! >/run/firewall.pid
for i in $(seq 300); do iptables -S DOCKER-USER >/dev/null 2>&1 && docker info >/dev/null 2>&1 && exit 0; sleep .2; done; tail -30 /var/log/dockerd; exit 1`)
	}, remedy: func(t *testing.T, n *nodekit.Node, _ firewallMode) {
		runProgram(t, n, `iptables -I DOCKER-USER -i lxc+ -j ACCEPT; iptables -I DOCKER-USER -o waggle_host -j ACCEPT`)
	}},
	{name: "ufw", chain: "chain FORWARD of nftables table ip filter", blocked: true, replies: true, start: func(t *testing.T, n *nodekit.Node) {
		runProgram(t, n, `ufw --force enable`)
	}, remedy: func(t *testing.T, n *nodekit.Node, _ firewallMode) {
		runProgram(t, n, `ufw allow 8472/udp; ufw allow 4240/tcp; ufw default allow routed`)
	}},
	{name: "firewalld", chain: "chain filter_PREROUTING of nftables table inet firewalld", blocked: true, drops6: true, start: func(t *testing.T, n *nodekit.Node) {
		runProgram(t, n, `mkdir -p /run/dbus; dbus-daemon --system --fork
firewalld --nofork >/var/log/firewalld 2>&1 & echo $! >/run/firewall.pid
for i in $(seq 300); do firewall-cmd --state >/dev/null 2>&1 && exit 0; sleep .2; done; cat /var/log/firewalld; exit 1`)
	}, remedy: func(t *testing.T, n *nodekit.Node, mode firewallMode) {
		sources := "10.244.0.0/16 fd00:10:244::/48"
		if mode.native {
			sources += " 192.0.2.0/24 2001:db8:2::/64"
		}
		runProgram(t, n, `firewall-cmd --permanent --add-port=8472/udp --add-port=4240/tcp
for source in `+sources+`; do firewall-cmd --permanent --zone=trusted --add-source=$source; done
sed -i 's/^IPv6_rpfilter=.*/IPv6_rpfilter=no/' /etc/firewalld/firewalld.conf
firewall-cmd --reload`)
	}},
}

// Each node runs another firewall.
func TestPrivilegedFirewalls_OfPrograms(t *testing.T) {
	root := os.Getenv(firewallRootEnv)
	if root == "" {
		t.Skip("needs " + firewallRootEnv + ": make soak SOAK=firewalls")
	}
	firewalls := make([]firewall, len(programFirewalls))
	for i, f := range programFirewalls {
		firewalls[i] = f
		firewalls[i].start = func(t *testing.T, n *nodekit.Node) { mountDebian(t, n, root); f.start(t, n) }
	}
	for name, mode := range firewallModes {
		t.Run(name, func(t *testing.T) { reportedAndRemedied(t, firewalls, mode) })
	}
}

func debianOf(n *nodekit.Node) string { return filepath.Join(n.Dir, "debian") }

// mountDebian mounts a writable view of a Debian system for a node. At the end of the test it ends the program that the node has started there.
func mountDebian(t *testing.T, n *nodekit.Node, root string) {
	t.Helper()
	sh(t, n, "sh", "-ec", fmt.Sprintf(`mkdir -p %[1]s; cd %[1]s; mount -t tmpfs tmpfs .; cd %[1]s; mkdir upper work root
mount -t overlay overlay -o lowerdir=%[2]s,upperdir=upper,workdir=work root; cd root
mount -t proc proc proc; mount -t sysfs sysfs sys; mount -t tmpfs tmpfs run; mount --rbind /dev dev; mkdir -p var/lib/docker
mount -t tmpfs tmpfs var/lib/docker; mount -t cgroup2 cgroup2 sys/fs/cgroup`, debianOf(n), root))
	t.Cleanup(func() { // the process remains a zombie, because its parent does not wait for it
		runProgram(t, n, `[ -e /run/firewall.pid ] || exit 0; pid=$(cat /run/firewall.pid); kill $pid; [ ! -e /run/dbus/pid ] || kill $(cat /run/dbus/pid)
while grep -qs '^State:.[^Z]' /proc/$pid/status; do sleep .1; done`)
	})
}

// runProgram runs a shell script in the Debian system of a node.
func runProgram(t *testing.T, n *nodekit.Node, script string) {
	t.Helper()
	sh(t, n, "chroot", filepath.Join(debianOf(n), "root"), "sh", "-ec", script)
}

// sh runs a command on a node, with the environment of a system service.
func sh(t *testing.T, n *nodekit.Node, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	runOn(t, n, cmd)
}
