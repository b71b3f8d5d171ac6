// Package cilium holds the rows that stand for objects of the group cilium.io, trimmed to what the agent reads.
package cilium
