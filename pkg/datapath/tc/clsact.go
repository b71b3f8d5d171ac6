package tc

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// clsact is the kind of the queueing discipline that carries both hooks of a device.
const clsact = "clsact"

// clsactHandle is the handle of every clsact, ffff:.
const clsactHandle = 0xffff0000

// Blocks are the shared blocks of a clsact. Zero means that the hook has its own filters.
type Blocks struct{ Ingress, Egress uint32 }

// ErrNoDevice means that the device of a request does not exist.
var ErrNoDevice = errors.New("no such device")

// EnsureClsact adds a clsact with exactly these blocks to a device. It first deletes a clsact with other blocks, because the kernel cannot change the blocks
// of a clsact.
func (h *Handle) EnsureClsact(ifindex int, want Blocks) error {
	err := h.createClsact(ifindex, want)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	have, found, err := h.Clsact(ifindex)
	if err != nil || (found && have == want) {
		return err
	}
	if err := h.DeleteClsact(ifindex); err != nil {
		return err
	}
	return h.createClsact(ifindex, want)
}

func (h *Handle) createClsact(ifindex int, b Blocks) error {
	parts := []nl.NetlinkRequestData{
		tcMsg(int32(ifindex), netlink.HANDLE_CLSACT, clsactHandle, 0),
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(clsact)),
	}
	if b.Ingress != 0 {
		parts = append(parts, nl.NewRtAttr(nl.TCA_INGRESS_BLOCK, nl.Uint32Attr(b.Ingress)))
	}
	if b.Egress != 0 {
		parts = append(parts, nl.NewRtAttr(nl.TCA_EGRESS_BLOCK, nl.Uint32Attr(b.Egress)))
	}
	_, err := h.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, 0, parts...)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("create clsact on ifindex %d: %w", ifindex, ErrNoDevice)
	}
	return fmt.Errorf("create clsact on ifindex %d: %w", ifindex, err)
}

// DeleteClsact deletes the clsact of a device. A missing device or clsact is success.
func (h *Handle) DeleteClsact(ifindex int) error {
	_, err := h.request(unix.RTM_DELQDISC, unix.NLM_F_ACK, 0,
		tcMsg(int32(ifindex), netlink.HANDLE_CLSACT, clsactHandle, 0),
		nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(clsact)))
	if err != nil && !gone(err) {
		return fmt.Errorf("delete clsact of ifindex %d: %w", ifindex, err)
	}
	return nil
}

// Clsact reads the blocks of one device. found is false when the device or its clsact does not exist.
func (h *Handle) Clsact(ifindex int) (Blocks, bool, error) {
	// Without NLM_F_ECHO, kernels before 6.7 send only the acknowledgement.
	msgs, err := h.request(unix.RTM_GETQDISC, unix.NLM_F_ECHO|unix.NLM_F_ACK, unix.RTM_NEWQDISC,
		tcMsg(int32(ifindex), netlink.HANDLE_CLSACT, 0, 0))
	if err != nil {
		if gone(err) {
			return Blocks{}, false, nil
		}
		return Blocks{}, false, fmt.Errorf("read clsact of ifindex %d: %w", ifindex, err)
	}
	for _, m := range msgs {
		if _, blocks, ok := parseClsact(m); ok {
			return blocks, true, nil
		}
	}
	return Blocks{}, false, nil
}

// Clsacts reads the blocks of all devices, by ifindex, in one dump.
func (h *Handle) Clsacts() (map[int]Blocks, error) {
	msgs, err := h.request(unix.RTM_GETQDISC, unix.NLM_F_DUMP, unix.RTM_NEWQDISC, tcMsg(0, 0, 0, 0))
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	all := make(map[int]Blocks)
	for _, m := range msgs {
		if ifindex, blocks, ok := parseClsact(m); ok {
			all[ifindex] = blocks
		}
	}
	return all, nil
}

// parseClsact parses one RTM_NEWQDISC message; ok is false for other kinds and for truncated messages.
func parseClsact(m []byte) (ifindex int, b Blocks, ok bool) {
	if len(m) < nl.SizeofTcMsg {
		return 0, Blocks{}, false
	}
	for kind, value := range attributes(m[nl.SizeofTcMsg:]) {
		switch kind {
		case nl.TCA_KIND:
			ok = text(value) == clsact
		case nl.TCA_INGRESS_BLOCK:
			b.Ingress = number(value)
		case nl.TCA_EGRESS_BLOCK:
			b.Egress = number(value)
		}
	}
	return int(nl.DeserializeTcMsg(m).Ifindex), b, ok
}
