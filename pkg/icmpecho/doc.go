// Package icmpecho sends ICMP echo requests of any size and tells failures of this node from missing replies.
package icmpecho
