package loader

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/cgroups"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
)

// topmost names the root cgroup of the machine, wherever it is mounted.
const topmost = "/"

// cgroupHooks maps names of hooks of a control group to attach types; the names of the programs contain the names of the hooks.
var cgroupHooks = map[string]ebpf.AttachType{
	"connect4": ebpf.AttachCGroupInet4Connect, "connect6": ebpf.AttachCGroupInet6Connect,
	"sendmsg4": ebpf.AttachCGroupUDP4Sendmsg, "sendmsg6": ebpf.AttachCGroupUDP6Sendmsg,
	"recvmsg4": ebpf.AttachCGroupUDP4Recvmsg, "recvmsg6": ebpf.AttachCGroupUDP6Recvmsg,
	"getpeername4": ebpf.AttachCgroupInet4GetPeername, "getpeername6": ebpf.AttachCgroupInet6GetPeername,
	"bind4": ebpf.AttachCGroupInet4Bind, "bind6": ebpf.AttachCGroupInet6Bind,
}

// cgroupRows returns the rows of the hooks of the control group.
func cgroupRows(o socketlboptions.Options) (rows []attachments.Attachment) {
	if !o.Enabled {
		return nil
	}
	for _, program := range bpf.SockPrograms() {
		rows = append(rows, attachments.Attachment{Kind: attachments.CGroup, Device: cmp.Or(o.Cgroup, topmost),
			Hook: strings.TrimPrefix(program, bpf.Sock+"_"), Program: program})
	}
	return rows
}

// programNames returns the names of all programs that this run needs, in the order in which they are loaded.
func programNames(o socketlboptions.Options) []string {
	if !o.Enabled {
		return bpf.Programs()
	}
	return append(bpf.Programs(), bpf.SockPrograms()...)
}

// AttachGroup implements deviceLinks.
func (t *tcxLinks) AttachGroup(key, group, hook string, p *program) error {
	path, id, err := findGroup(group)
	if err != nil {
		return err
	}
	pin := filepath.Join(t.dir, key)
	old, there, err := openGroup(pin, id)
	if err != nil {
		return err
	}
	if old != nil {
		defer old.Close()
	}
	switch {
	case there && p == nil:
		return nil
	case there:
		return old.exchange(key, p)
	case p == nil:
		return fmt.Errorf("%s: %w", key, errNoFilter)
	}
	if err := t.Detach(key); err != nil { // the pin of a removed or another group
		return err
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return fmt.Errorf("create directory for pinned links: %w", err)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: cgroupHooks[hook], Program: p.loaded})
	if err != nil {
		return fmt.Errorf("attach %s to %s: %w", p.Name, path, explainAttachError(err))
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link %s: %w", pin, err) // closing the link detaches it again
	}
	return nil
}

// explainAttachError adds the likely causes to EPERM.
func explainAttachError(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: a foreign program without BPF_F_ALLOW_MULTI excludes others from this cgroup (bpftool cgroup tree), "+
			"or the agent lacks CAP_NET_ADMIN", err)
	}
	return err
}

// openGroup opens a pinned link and reports whether it is attached to the group with this id.
func openGroup(pin string, id uint64) (*pinnedLink, bool, error) {
	l, err := openPinned(pin)
	if l == nil {
		return nil, false, err
	}
	on := l.info.Cgroup()
	return l, on != nil && on.CgroupId == id, nil
}

// Groups implements deviceLinks.
func (t *tcxLinks) Groups(groups []string) map[string]uint64 {
	ids := make(map[string]uint64, len(groups))
	for _, group := range groups {
		if _, id, err := findGroup(group); err == nil {
			ids[group] = id
		}
	}
	return ids
}

// findGroup returns the directory of a group and its id.
func findGroup(group string) (path string, id uint64, err error) {
	if group == topmost {
		path, err = cgroups.Root()
	} else {
		path, err = cgroups.Resolve(group)
	}
	if err != nil {
		return "", 0, err
	}
	stat, err := os.Stat(path)
	if err != nil {
		return "", 0, fmt.Errorf("read the cgroup: %w", err)
	}
	return path, stat.Sys().(*syscall.Stat_t).Ino, nil
}

// groupsOf returns the control groups of rows, sorted.
func groupsOf(rows iter.Seq2[*attachments.Attachment, statedb.Revision]) []string {
	groups := map[string]bool{}
	for a := range rows {
		if a.Kind == attachments.CGroup {
			groups[a.Device] = true
		}
	}
	return slices.Sorted(maps.Keys(groups))
}

// netnsCookie returns the cookie of the network namespace of the agent, which is the namespace of the node. Programs read the same value.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return 0, fmt.Errorf("read the cookie of the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the cookie of the network namespace: %w", err)
	}
	return cookie, nil
}
