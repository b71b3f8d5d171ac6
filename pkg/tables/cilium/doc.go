// Package cilium holds the rows of objects of the API group cilium.io, trimmed to the fields that the agent reads.
package cilium
