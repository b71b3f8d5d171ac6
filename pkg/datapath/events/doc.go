// Package events decodes the records that the datapath writes into its ring buffer.
//
// Records have the layouts of Cilium's monitor, so that its tools can read them: a header that depends on the type, then the
// first bytes of the packet. Integers are in native byte order. [Decode] decodes a record of the ring buffer, [Wire] converts it
// into the form of the monitor's stream, and [DecodeWire] decodes that form. [Reason] and [File] name the numbers in records.
package events
