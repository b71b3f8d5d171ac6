// Package socketlb computes the options of the translation of services at the socket: whether it is enabled, and for which sockets.
//
// It reads only flags. The cell loader loads the programs, attaches them to the control group and keeps them attached.
//
// Tables in: none. Tables out: none. Kernel state: none of its own.
package socketlb
