package bpf

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// EncapSupport is the part of the tunnel that programs can implement on a kernel. The tunnel device does the rest.
type EncapSupport struct {
	Modes uint32 // sum of [EncapSendsIPv4], [EncapReceivesIPv4] and their IPv6 counterparts
	Err   error  // reason for missing Modes
	Stack error  // why programs may not forward packets of pods past the stack, also without a tunnel; nil when they may
}

// String describes which side encapsulates and decapsulates, and the reason.
func (s EncapSupport) String() string {
	if s.Modes == 0 {
		return fmt.Sprintf("encapsulation by the device: %v", s.Err)
	}
	if s.Err == nil {
		return "encapsulation in BPF"
	}
	return fmt.Sprintf("encapsulation in BPF, except: %v", s.Err)
}

// EncapProbe returns the support of the running kernel. It probes the kernel once.
type EncapProbe func() EncapSupport

// NewEncapProbe returns a probe of the running kernel.
func NewEncapProbe() EncapProbe { return sync.OnceValue(probeEncap) }

// Flags of bpf_skb_adjust_room, from include/uapi/linux/bpf.h.
const (
	roomAtMAC    = 1 // BPF_ADJ_ROOM_MAC
	fixedGSO     = 1 << 0
	outerIPv4    = 1 << 1
	outerUDP     = 1 << 4
	noCsumReset  = 1 << 5
	innerEther   = 1 << 6
	toIPv6       = 1 << 8 // since Linux 6.3
	innerLength  = 14 << 56
	overhead     = 50
	probedLength = 128
)

// roomAdjustment is a change of the headers of a packet.
type roomAdjustment struct {
	mode   uint32
	name   string
	length int32
	flags  int64
}

var roomAdjustments = []roomAdjustment{
	{EncapSends, "frames to other nodes", overhead, fixedGSO | outerIPv4 | outerUDP | innerEther | innerLength},
	{EncapReceivesIPv4, "frames from them with IPv4 inside", -overhead, noCsumReset},
	{EncapReceivesIPv6, "frames from them with IPv6 inside", -overhead, noCsumReset | toIPv6},
}

// probeEncap runs a program that changes the headers of a packet in each way.
func probeEncap() (s EncapSupport) {
	var failures []string
	for _, r := range roomAdjustments {
		err := r.try()
		if err == nil {
			s.Modes |= r.mode
			continue
		}
		failures = append(failures, fmt.Sprintf("%s: %v", r.name, err))
	}
	// A family is sent only if it is also received: otherwise the node's connection tracking sees one direction of each connection and marks it as invalid.
	for receives, sends := range map[uint32]uint32{EncapReceivesIPv4: EncapSendsIPv4, EncapReceivesIPv6: EncapSendsIPv6} {
		if s.Modes&receives == 0 {
			s.Modes &^= sends
		}
	}
	if len(failures) > 0 {
		s.Err = errors.New(strings.Join(failures, "; "))
	}
	return s
}

// try returns why the kernel does not make this change to a packet, and nil when it does.
func (r roomAdjustment) try() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "encap_probe", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, r.length),
		asm.Mov.Imm(asm.R3, roomAtMAC),
		asm.LoadImm(asm.R4, r.flags, asm.DWord),
		asm.FnSkbAdjustRoom.Call(),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("load a program that calls bpf_skb_adjust_room: %w", err)
	}
	defer program.Close()
	packet := make([]byte, probedLength)
	packet[12], packet[14] = 0x08, 0x45 // an IPv4 packet; nothing reads the rest
	options := ebpf.RunOptions{Data: packet, DataOut: make([]byte, 2*probedLength)}
	code, err := program.Run(&options)
	if err != nil {
		return fmt.Errorf("run a program that calls bpf_skb_adjust_room: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("the kernel rejects flags %#x of bpf_skb_adjust_room: error %d", uint64(r.flags), int32(code))
	}
	if got, want := len(options.DataOut), probedLength+int(r.length); got != want {
		return fmt.Errorf("bpf_skb_adjust_room made a packet of %d bytes of one of %d, want %d", got, probedLength, want)
	}
	return nil
}
