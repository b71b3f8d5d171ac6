// Package events reads what the datapath writes into its ring buffer.
//
// Records have the layouts of Cilium's monitor, so that its tools can read ours: a header by type, then the first bytes
// of the packet. Integers are in the byte order of the machine. [Decode] takes one record apart; [Wire] makes of it what the
// monitor's stream carries, and [DecodeWire] takes that apart. [Reason] and [File] name the numbers inside.
package events
