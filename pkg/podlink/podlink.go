// Package podlink holds the names and numbers by which the plugin, the agent and the kernel recognise our links.
package podlink

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

const (
	// Group is the link group of the host ends of pod links; our nftables rule matches it.
	Group uint32 = 0x57414701
	// DeletedGroup is where DEL puts a host end; the agent empties the group in one request.
	DeletedGroup uint32 = 0x574147ff

	// OverlayGroup is the link group of the tunnel device and of the pair that completes checksums; our nftables rule matches it too.
	OverlayGroup uint32 = 0x57414702

	// IngressBlock and EgressBlock are the numbers of the two tc blocks that all pod links share.
	IngressBlock uint32 = 0x57470001
	EgressBlock  uint32 = 0x57470002

	// MarkMagic stands in the mark of every packet that our programs passed up from a pod, under MarkMask. The
	// layout is Cilium's "identity" mark.
	MarkMagic uint32 = 0x0f00
	MarkMask  uint32 = 0x0f00

	// Prefix starts the name of each host end.
	Prefix = "lxc"

	HostDevice = "waggle_host"  // carries the router addresses
	NetDevice  = "waggle_net"   // its peer
	HoldDevice = "waggle_hold"  // stays down; keeps the shared blocks alive
	HoldPeer   = "waggle_hold2" // its peer

	OverlayDevice = "waggle_vxlan" // the tunnel to other nodes

	ChecksumDevice = "waggle_csum"  // completes the checksums of packets to nodes to which devices of the underlay spoil them
	ChecksumPeer   = "waggle_csum2" // its peer, from which they enter the tunnel
)

// HostName names the host end of an attachment. The attempt makes a repeated ADD differ from a link whose deletion is
// still pending. The result has 15 characters, the most that Linux takes (IFNAMSIZ less the terminator).
func HostName(containerID, ifName string, attempt int) string {
	sum := sha256.Sum256([]byte(containerID + ":" + ifName + ":" + strconv.Itoa(attempt)))
	return Prefix + hex.EncodeToString(sum[:6])
}

// IsHostName tells whether name has the form that [HostName] makes.
func IsHostName(name string) bool {
	rest, ok := strings.CutPrefix(name, Prefix)
	if !ok || len(rest) != 12 {
		return false
	}
	_, err := hex.DecodeString(rest)
	return err == nil && rest == strings.ToLower(rest)
}
