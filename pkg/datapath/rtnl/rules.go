package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Rules lists the policy rules of both families. A kernel without policy routing in a family has no rules of this family.
func (h *Handle) Rules() ([]netlink.Rule, error) {
	return retry("policy rules", func() ([]netlink.Rule, error) {
		var all []netlink.Rule
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules, err := h.Handle.RuleList(family)
			if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
				return nil, err
			}
			all = append(all, rules...)
		}
		return all, nil
	})
}
