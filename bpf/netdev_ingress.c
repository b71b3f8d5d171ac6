//go:build ignore

/* Ingress of devices that lead out of the node. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "drop.h"
#include "masquerade_maps.h"
#include "reasons.h"

SEC("tc")
int netdev_ingress(struct __sk_buff *skb)
{
	struct observation seen = { .direction = DIRECTION_INGRESS };

	return finish(skb, PASS, &seen, TC_ACT_UNSPEC); /* other programs on the device come after us */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
