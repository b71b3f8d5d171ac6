// Package servicemap reads and writes the BPF maps by which the datapath finds the backends of services.
package servicemap
