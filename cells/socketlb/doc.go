// Package socketlb decides whether and for whom services are translated at the socket, before there is a packet.
//
// It reads flags and nothing else. The cell loader loads the programs, hangs them on the control group and keeps them there.
//
// Tables: none. Kernel state: none of its own.
package socketlb
