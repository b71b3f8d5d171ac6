package nodekit

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
)

// PodLinks lists the host ends of pod links on the node, including those pending deletion.
func (n *Node) PodLinks() (names []string, err error) {
	err = n.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if g := l.Attrs().Group; g == podlink.Group || g == podlink.DeletedGroup || strings.HasPrefix(l.Attrs().Name, podlink.Prefix) {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

// Snapshot describes the state of a node's kernel and file system, one item a line, for comparisons.
func (n *Node) Snapshot() (lines []string, err error) {
	err = n.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, l := range links {
			lines = append(lines, "link "+l.Attrs().Name)
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
				lines = append(lines, "route "+r.Dst.String())
			}
		}
		return filepath.WalkDir(n.StateDir(), func(path string, entry fs.DirEntry, err error) error {
			quarantined := filepath.Base(filepath.Dir(path)) == "addresses" // quarantined for a while after DEL: not left over
			if err == nil && !entry.IsDir() && !quarantined {
				lines = append(lines, "file "+strings.TrimPrefix(path, n.Dir))
			}
			return err
		})
	})
	slices.Sort(lines)
	return lines, err
}

// Changes returns an error with the differences between two lists, or nil if they are equal.
func Changes(before, after []string) error {
	var changes []string
	for _, fact := range before {
		if !slices.Contains(after, fact) {
			changes = append(changes, "gone: "+fact)
		}
	}
	for _, fact := range after {
		if !slices.Contains(before, fact) {
			changes = append(changes, "new: "+fact)
		}
	}
	if len(changes) > 0 {
		return errors.New(strings.Join(changes, "\n"))
	}
	return nil
}
