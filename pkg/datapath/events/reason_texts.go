package events

// dropTexts holds Cilium's texts in the order of the numbers, from [FirstDrop] on.
var dropTexts = [...]string{
	"Invalid source mac",                                    // 130
	"Invalid destination mac",                               // 131
	"Invalid source ip",                                     // 132
	"Policy denied",                                         // 133
	"Invalid packet",                                        // 134
	"CT: Truncated or invalid header",                       // 135
	"Fragmentation needed",                                  // 136
	"CT: Unknown L4 protocol",                               // 137
	"CT: Can't create entry from packet",                    // 138
	"Unsupported L3 protocol",                               // 139
	"Missed tail call",                                      // 140
	"Error writing to packet",                               // 141
	"Unknown L4 protocol",                                   // 142
	"Unknown ICMPv4 code",                                   // 143
	"Unknown ICMPv4 type",                                   // 144
	"Unknown ICMPv6 code",                                   // 145
	"Unknown ICMPv6 type",                                   // 146
	"Error retrieving tunnel key",                           // 147
	"Error retrieving tunnel options",                       // 148
	"Invalid Geneve option",                                 // 149
	"Unknown L3 target address",                             // 150
	"Stale or unroutable IP",                                // 151
	"No matching local container found",                     // 152
	"Error while correcting L3 checksum",                    // 153
	"Error while correcting L4 checksum",                    // 154
	"CT: Map insertion failed",                              // 155
	"Invalid IPv6 extension header",                         // 156
	"IP fragmentation not supported",                        // 157
	"Service backend not found",                             // 158
	"Unsupported protocol for service",                      // 159
	"No tunnel/encapsulation endpoint (datapath BUG!)",      // 160
	"NAT 46/64 not enabled",                                 // 161
	"Reached EDT rate-limiting drop horizon",                // 162
	"Unknown connection tracking state",                     // 163
	"Local host is unreachable",                             // 164
	"No configuration available to perform policy decision", // 165
	"Unsupported L2 protocol",                               // 166
	"No mapping for NAT masquerade",                         // 167
	"Unsupported protocol for NAT masquerade",               // 168
	"FIB lookup failed",                                     // 169
	"Encapsulation traffic is prohibited",                   // 170
	"Invalid identity",                                      // 171
	"Unknown sender",                                        // 172
	"NAT not needed",                                        // 173
	"Is a ClusterIP",                                        // 174
	"First logical datagram fragment not found",             // 175
	"Forbidden ICMPv6 message",                              // 176
	"Denied by LB src range check",                          // 177
	"Socket lookup failed",                                  // 178
	"Socket assign failed",                                  // 179
	"Proxy redirection not supported for protocol",          // 180
	"Policy denied by denylist",                             // 181
	"VLAN traffic disallowed by VLAN filter",                // 182
	"Incorrect VNI from VTEP",                               // 183
	"Failed to update or lookup TC buffer",                  // 184
	"No SID was found for the IP address",                   // 185
	"SRv6 state was removed during tail call",               // 186
	"L3 translation from IPv4 to IPv6 failed (NAT46)",       // 187
	"L3 translation from IPv6 to IPv4 failed (NAT64)",       // 188
	"Authentication required",                               // 189
	"No conntrack map found",                                // 190
	"No nat map found",                                      // 191
	"Invalid ClusterID",                                     // 192
	"Unsupported packet protocol for DSR encapsulation",     // 193
	"No egress gateway found",                               // 194
	"Traffic is unencrypted",                                // 195
	"TTL exceeded",                                          // 196
	"No node ID found",                                      // 197
	"Rate limited",                                          // 198
	"IGMP handled",                                          // 199
	"IGMP subscribed",                                       // 200
	"Multicast handled",                                     // 201
	"Host datapath not ready",                               // 202
	"Endpoint policy program not available",                 // 203
	"No Egress IP configured",                               // 204
}
