// Package ipmasqagent reads the configuration file of the ip-masq-agent: prefixes towards which pods keep their addresses.
//
// Tables in: none. Table out: ip-masq-agent, complete once a valid file was read or the file did not exist. The masquerade cell uses its rows
// together with the prefixes of the flags. The cell owns nothing in the kernel.
//
// A file that cannot be read or parsed changes nothing: the rows of the last valid file stay, and the module is Degraded until the file is valid
// again. After a restart with such a file the table stays incomplete, so that the entries of the previous run stay in the kernel.
package ipmasqagent
