// Package tests runs the programs of package bpf on packets, and on real devices in namespaces. Kits in files named *_kit_test.go build the nodes, packets and
// maps that the tests share.
package tests
