package tc

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// blockIfindex replaces a device index. It means that the parent is the number of a shared block (TCM_IFINDEX_MAGIC_BLOCK of the kernel).
const blockIfindex = -1

// Identifiers of Waggle's filter at a place. They are constant, so a replacement is atomic: the kernel swaps the program in the existing filter.
const (
	priority     = 1
	filterHandle = 1
	protocol     = unix.ETH_P_ALL
)

// AttachPoint is an attachment point of filters: a shared block or one hook of a device.
type AttachPoint struct {
	ifindex int32
	parent  uint32
	name    string
}

// Block returns the place of all devices that share a block.
func Block(number uint32) AttachPoint {
	return AttachPoint{blockIfindex, number, fmt.Sprintf("block %#x", number)}
}

// Ingress returns the place of packets that a device receives.
func Ingress(ifindex int) AttachPoint {
	return AttachPoint{int32(ifindex), netlink.HANDLE_MIN_INGRESS, fmt.Sprintf("ingress of ifindex %d", ifindex)}
}

// Egress returns the place of packets that a device sends.
func Egress(ifindex int) AttachPoint {
	return AttachPoint{int32(ifindex), netlink.HANDLE_MIN_EGRESS, fmt.Sprintf("egress of ifindex %d", ifindex)}
}

// String returns the name of the place for messages.
func (p AttachPoint) String() string { return p.name }

// Filter is one classifier as the kernel reports it.
type Filter struct {
	Kind         string // "bpf" for Waggle's
	Priority     uint16 // lower runs first
	Handle       uint32
	Name         string // name at attachment, such as "pod_egress"
	ProgramID    uint32 // 0 for a filter of another kind
	DirectAction bool
}

// Ours reports whether the filter has the identifiers of [Handle.ReplaceFilter].
func (f Filter) Ours() bool {
	return f.Kind == "bpf" && f.Priority == priority && f.Handle == filterHandle && f.DirectAction
}

// ReplaceFilter attaches a program as the direct-action filter of a place. If Waggle's filter exists, the kernel swaps its program atomically: no packet passes
// without a filter.
func (h *Handle) ReplaceFilter(at AttachPoint, name string, programFD int) error {
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_BPF_FD, nl.Uint32Attr(uint32(programFD)))
	options.AddRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated(name))
	options.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
	_, err := h.request(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_ACK, 0,
		tcMsg(at.ifindex, at.parent, filterHandle, info()), nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")), options)
	if err != nil {
		return fmt.Errorf("attach %s to %s: %w", name, at, err)
	}
	return nil
}

// DeleteFilter deletes Waggle's filter of a place. A missing filter, block or device is success.
func (h *Handle) DeleteFilter(at AttachPoint) error {
	_, err := h.request(unix.RTM_DELTFILTER, unix.NLM_F_ACK, 0,
		tcMsg(at.ifindex, at.parent, filterHandle, info()), nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")))
	if err != nil && !gone(err) {
		return fmt.Errorf("delete filter of %s: %w", at, err)
	}
	return nil
}

// Filters lists all filters of a place in execution order, Waggle's and foreign ones. A place that does not exist has none.
func (h *Handle) Filters(at AttachPoint) ([]Filter, error) {
	msgs, err := h.request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, unix.RTM_NEWTFILTER, tcMsg(at.ifindex, at.parent, 0, 0))
	if err != nil {
		if gone(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("list filters of %s: %w", at, err)
	}
	var filters []Filter
	for _, m := range msgs {
		if f, ok := parseFilter(m); ok {
			filters = append(filters, f)
		}
	}
	return filters, nil
}

// info packs priority and protocol in the layout of tcm_info; the protocol is in network byte order.
func info() uint32 { return netlink.MakeHandle(priority, nl.Swap16(protocol)) }

// parseFilter parses one RTM_NEWTFILTER message. A message with handle 0 announces a priority, not a filter.
func parseFilter(m []byte) (f Filter, ok bool) {
	if len(m) < nl.SizeofTcMsg {
		return Filter{}, false
	}
	head := nl.DeserializeTcMsg(m)
	if head.Handle == 0 {
		return Filter{}, false
	}
	f.Priority, _ = netlink.MajorMinor(head.Info)
	f.Handle = head.Handle
	for kind, value := range attributes(m[nl.SizeofTcMsg:]) {
		switch kind {
		case nl.TCA_KIND:
			f.Kind = text(value)
		case nl.TCA_OPTIONS:
			if f.Kind == "bpf" {
				f.parseBPF(value)
			}
		}
	}
	return f, true
}

// parseBPF parses the options of a cls_bpf filter.
func (f *Filter) parseBPF(options []byte) {
	for kind, value := range attributes(options) {
		switch kind {
		case nl.TCA_BPF_NAME:
			f.Name = text(value)
		case nl.TCA_BPF_ID:
			f.ProgramID = number(value)
		case nl.TCA_BPF_FLAGS:
			f.DirectAction = number(value)&nl.TCA_BPF_FLAG_ACT_DIRECT != 0
		}
	}
}
