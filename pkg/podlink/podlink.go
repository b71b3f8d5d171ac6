// Package podlink holds the names and numbers by which the plugin, the agent and the kernel recognise Waggle's links.
package podlink

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

const (
	// Group is the link group of the host ends of pod links; Waggle's nftables rule matches it.
	Group uint32 = 0x57414701
	// DeletedGroup is the group into which DEL moves a host end; the agent deletes all links of the group with one request.
	DeletedGroup uint32 = 0x574147ff

	// OverlayGroup is the link group of the tunnel device and of the pair that completes checksums; Waggle's nftables rule matches it too.
	OverlayGroup uint32 = 0x57414702

	// IngressBlock and EgressBlock are the numbers of the two tc blocks that all pod links share.
	IngressBlock uint32 = 0x57470001
	EgressBlock  uint32 = 0x57470002

	// MarkMagic is the value, under MarkMask, of the mark of every packet that the programs passed from a pod to the stack. The layout is Cilium's "identity"
	// mark.
	MarkMagic uint32 = 0x0f00
	MarkMask  uint32 = 0x0f00

	// Prefix is the prefix of the name of each host end.
	Prefix = "lxc"

	HostDevice = "waggle_host"  // carries the router addresses
	NetDevice  = "waggle_net"   // its peer
	HoldDevice = "waggle_hold"  // stays down; keeps the shared blocks alive
	HoldPeer   = "waggle_hold2" // its peer

	OverlayDevice = "waggle_vxlan" // the tunnel to other nodes

	ChecksumDevice = "waggle_csum"  // completes the checksums of packets to nodes if devices of the underlay corrupt them
	ChecksumPeer   = "waggle_csum2" // its peer, from which these packets enter the tunnel
)

// HostName returns the name of the host end of an attachment. The attempt distinguishes a repeated ADD from a link whose deletion is still pending. The
// result has 15 characters, the maximum in Linux (IFNAMSIZ less the terminator).
func HostName(containerID, ifName string, attempt int) string {
	sum := sha256.Sum256([]byte(containerID + ":" + ifName + ":" + strconv.Itoa(attempt)))
	return Prefix + hex.EncodeToString(sum[:6])
}

// IsHostName reports whether name has the format of [HostName].
func IsHostName(name string) bool {
	rest, ok := strings.CutPrefix(name, Prefix)
	if !ok || len(rest) != 12 {
		return false
	}
	_, err := hex.DecodeString(rest)
	return err == nil && rest == strings.ToLower(rest)
}
