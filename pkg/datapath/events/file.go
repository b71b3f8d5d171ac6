package events

import "strconv"

// File is the source file that dropped a packet. Numbers below [FileARP] are files of Cilium.
type File uint8

// Files of Waggle.
const (
	FileARP           File = 200
	FileDeliver       File = 201
	FileEth           File = 203
	FileHostEgress    File = 204
	FileIPv4          File = 205
	FileIPv6          File = 206
	FileND            File = 207
	FilePodEgress     File = 208
	FilePodIngress    File = 209
	FilePolicy        File = 210
	FileConntrack     File = 211
	FileFragments     File = 212
	FileEvaluate      File = 213
	FileL4            File = 214
	FileRelated       File = 215
	FileTrack         File = 216
	FileNATCreate     File = 217
	FilePodService    File = 218
	FileNetdevIngress File = 219
	FileNetdevEgress  File = 220
	FileSNAT          File = 221
	FileRoute         File = 222
	FileNATRewrite    File = 223
	FileNATError      File = 224
	FileDrop          File = 225
	FilePodSteps      File = 226

	FileOverlay        File = 227
	FileOverlayIngress File = 228
	FileForward        File = 229
	FileOverlayInner   File = 230
	FileToNode         File = 231
	FileDecap          File = 232
	FilePathSend       File = 233
)

// String returns the name of the file below bpf/.
func (f File) String() string {
	switch f {
	case FileARP:
		return "arp.h"
	case FileDeliver:
		return "deliver.h"
	case FileEth:
		return "eth.h"
	case FileHostEgress:
		return "host_egress.c"
	case FileIPv4:
		return "ipv4.h"
	case FileIPv6:
		return "ipv6.h"
	case FileND:
		return "nd.h"
	case FilePodEgress:
		return "pod_egress.c"
	case FilePodIngress:
		return "pod_ingress.c"
	case FilePolicy:
		return "policy.h"
	case FileConntrack:
		return "conntrack.h"
	case FileFragments:
		return "fragments.h"
	case FileEvaluate:
		return "evaluate.h"
	case FileL4:
		return "l4.h"
	case FileRelated:
		return "related.h"
	case FileTrack:
		return "track.h"
	case FileNATCreate:
		return "nat_create.h"
	case FileOverlay:
		return "overlay.h"
	case FileOverlayIngress:
		return "overlay_ingress.c"
	case FileForward:
		return "forward.h"
	case FileOverlayInner:
		return "overlay_inner.h"
	case FileToNode:
		return "to_node.h"
	case FileDecap:
		return "decap.h"
	case FilePathSend:
		return "path_send.h"
	case FilePodSteps:
		return "pod_steps.h"
	case FilePodService:
		return "pod_service.h"
	case FileNetdevIngress:
		return "netdev_ingress.c"
	case FileNetdevEgress:
		return "netdev_egress.c"
	case FileSNAT:
		return "snat.h"
	case FileRoute:
		return "route.h"
	case FileNATRewrite:
		return "nat_rewrite.h"
	case FileNATError:
		return "nat_error.h"
	case FileDrop:
		return "drop.h"
	}
	return strconv.Itoa(int(f))
}
