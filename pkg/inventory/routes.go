package inventory

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

var protocolProof = fmt.Sprintf("route protocol %d", desiredroutes.Protocol)

// routes finds routes of all tables by their protocol.
func (m *Machine) routes() (found []Object, err error) {
	all, err := m.netlink.Routes()
	for _, r := range all {
		if r.Protocol != desiredroutes.Protocol {
			continue
		}
		to := "default"
		if r.Dst != nil {
			to = r.Dst.String()
		}
		found = append(found, Object{Name: to, Owner: "cell routereconciler", Proof: protocolProof,
			Note: fmt.Sprintf("table %d, by %s", r.Table, m.device(r.LinkIndex)),
			remove: func() error {
				if err := m.netlink.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
					return fmt.Errorf("delete route %s of table %d: %w", to, r.Table, err)
				}
				return nil
			}})
	}
	return found, err
}

func (m *Machine) device(index int) string {
	if l, err := m.netlink.LinkByIndex(index); err == nil {
		return l.Attrs().Name
	}
	return fmt.Sprintf("device %d", index)
}

// rules finds policy rules by their protocol.
func (m *Machine) rules() (found []Object, err error) {
	all, err := m.netlink.Rules()
	for _, r := range all {
		if r.Protocol != desiredroutes.Protocol {
			continue
		}
		family := map[int]string{netlink.FAMILY_V4: "IPv4", netlink.FAMILY_V6: "IPv6"}[r.Family]
		found = append(found, Object{Name: fmt.Sprintf("%s rule %d", family, r.Priority), Owner: "cell routereconciler", Proof: protocolProof,
			Note: fmt.Sprintf("table %d", r.Table),
			remove: func() error {
				if err := m.netlink.RuleDel(&r); err != nil && !rtnl.IsGone(err) {
					return fmt.Errorf("delete %s rule %d: %w", family, r.Priority, err)
				}
				return nil
			}})
	}
	return found, err
}

// nftTable finds the nftables table that guards pod links.
func (m *Machine) nftTable() ([]Object, error) {
	there, err := nftguard.Exists()
	if !there {
		return nil, err
	}
	return []Object{{Name: "inet " + nftguard.TableName, Owner: "cell loader", Proof: "name and family", remove: nftguard.Delete}}, nil
}
