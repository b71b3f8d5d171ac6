// Package ipmasqagent reads the configuration file of the ip-masq-agent: prefixes towards which pods keep their addresses.
//
// Tables in: none. Tables out: ip-masq-agent, complete once a file was read that could be understood, or none was there. Who masquerades
// takes its rows beside those of the flags. It owns nothing in the kernel.
//
// The file is followed. One that cannot be read or understood changes nothing: the rows of the last good one stay, and the module is degraded
// until it is good again. After a restart with such a file the table stays incomplete, so that what the run before has written stays in force.
package ipmasqagent
